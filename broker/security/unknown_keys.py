"""Which keys tokens were signed with that a key set lacked: each is a reason to fetch the set, but not for each token.

Source: Kafka's `RefreshingHttpsJwks.maybeExpediteRefresh`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

IDS_MAX: Final = 16
ID_CHARACTERS_MAX: Final = 1000
REMEMBERED_MS: Final = 60_000
"""Kafka's three."""


class UnknownKeys:
    """The ids that were met last. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}
        """Until when an id is no reason again, the one met longest ago first."""

    def is_reason(self, key_id: str, now_ms: int) -> bool:
        """Whether the key set shall be fetched for this id; if so, it is remembered."""
        if len(key_id) > ID_CHARACTERS_MAX or self._until_ms.get(key_id, now_ms) > now_ms:
            return False
        self._until_ms.pop(key_id, None)
        self._until_ms[key_id] = now_ms + REMEMBERED_MS
        if len(self._until_ms) > IDS_MAX:
            del self._until_ms[next(iter(self._until_ms))]
        return True

    def forget(self, key_ids: Collection[str]) -> None:
        """These are known now."""
        for key_id in key_ids:
            self._until_ms.pop(key_id, None)

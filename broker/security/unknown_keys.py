"""Remembers the unknown keys of tokens. Each is a reason to fetch the key set, but not for each token.

Source: Kafka's `RefreshingHttpsJwks.maybeExpediteRefresh`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

IDS_MAX: Final = 16
ID_CHARACTERS_MAX: Final = 1000
REMEMBERED_MS: Final = 60_000
"""Kafka's three values."""


class UnknownKeys:
    """Remembers the last unknown key ids, by monotonic time."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}
        """The end of each id's grace period, ordered by age."""

    def is_reason(self, key_id: str, now_ms: int) -> bool:
        """Whether to fetch the key set for this id. If so, the id is remembered."""
        if len(key_id) > ID_CHARACTERS_MAX or self._until_ms.get(key_id, now_ms) > now_ms:
            return False
        self._until_ms.pop(key_id, None)
        self._until_ms[key_id] = now_ms + REMEMBERED_MS
        if len(self._until_ms) > IDS_MAX:
            del self._until_ms[next(iter(self._until_ms))]
        return True

    def forget(self, key_ids: Collection[str]) -> None:
        """Forgets ids that are known now."""
        for key_id in key_ids:
            self._until_ms.pop(key_id, None)

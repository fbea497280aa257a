"""Finds the quota of a client, and with whom it shares that quota.

| order | set on | counted together |
|---|---|---|
| 1 | this user and this client id | this user's connections with this client id |
| 2 | this user and the default client id | as 1 |
| 3 | this user | all of this user |
| 4 | the default user and this client id | as 1 |
| 5 | the default user and the default client id | as 1 |
| 6 | the default user | as 3 |
| 7 | this client id | all with this client id |
| 8 | the default client id | as 7 |

Pure. Source: KIP-55; Kafka's `DefaultQuotaCallback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.quotas.quota_entity import CLIENT_ID, IP, USER, QuotaEntity, parse_entity, parse_values
from lowtide.metadata.config_image import ConfigImage


class QuotaShare(msgspec.Struct, frozen=True):
    """A limit, and the user and client id that share it. None matches everyone."""

    limit: float
    user: str | None
    client_id: str | None


class QuotaLimits:
    """The quotas of one metadata image, by entity. Immutable."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = quotas
        self.has_clients = any(entity[0][0] != IP for entity in quotas)
        """Whether any user or client id has a quota."""

    @classmethod
    def of(cls, configs: Mapping[str, ConfigImage]) -> QuotaLimits:
        """Reads the quotas of a metadata image."""
        return cls({parse_entity(text): parse_values(config.configs) for text, config in configs.items()})

    def share(self, key: str, user: str, client_id: str) -> QuotaShare | None:
        """Returns the quota `key` of a client, or None."""
        for names, by_user, by_client in _order(user, client_id):
            limit = self._quotas.get(names, _NOTHING).get(key)
            if limit is not None:
                return QuotaShare(limit, user if by_user else None, client_id if by_client else None)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Returns how many connections per second an address may open, or None without a limit."""
        for name in (address, None):
            limit = next(iter(self._quotas.get(((IP, name),), _NOTHING).values()), None)
            if limit is not None:
                return limit
        return None


_NOTHING: Final[Mapping[str, float]] = {}


def _order(user: str, client_id: str) -> tuple[tuple[QuotaEntity, bool, bool], ...]:
    """Returns the entities that a client belongs to, ordered as in the table, and whether user and client id count."""
    return (
        (((CLIENT_ID, client_id), (USER, user)), True, True),
        (((CLIENT_ID, None), (USER, user)), True, True),
        (((USER, user),), True, False),
        (((CLIENT_ID, client_id), (USER, None)), True, True),
        (((CLIENT_ID, None), (USER, None)), True, True),
        (((USER, None),), True, False),
        (((CLIENT_ID, client_id),), False, True),
        (((CLIENT_ID, None),), False, True),
    )

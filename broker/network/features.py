"""The features of KIP-584 that clients see: what a client may rely on with every broker.

A level is advertised only while the APIs that it promises are offered in the versions that it needs, so that an API that is capped
(`--max-version`) takes its feature back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.network.routes import VersionRange
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.api_versions import FinalizedFeatureKey, SupportedFeatureKey

FINALIZED_EPOCH: Final = 0
"""Clients believe who tells the highest. Levels don't change while a broker runs."""


class Feature(msgspec.Struct, frozen=True):
    """One feature, from level 0 (off) up to `level`, which `needs` these versions."""

    name: str
    level: int
    needs: Mapping[ApiKey, int]

    def is_on(self, advertised: Mapping[ApiKey, VersionRange]) -> bool:
        """Whether all is offered that it needs."""
        return all(key in advertised and advertised[key].maximum >= version for key, version in self.needs.items())


FEATURES: Final = (
    Feature("group.version", 1, {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1, ApiKey.CONSUMER_GROUP_DESCRIBE: 0}),
    Feature("transaction.version", 2, {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}),
)


def supported(advertised: Mapping[ApiKey, VersionRange]) -> list[SupportedFeatureKey]:
    """What this broker could use."""
    return [SupportedFeatureKey(name=each.name, min_version=0, max_version=each.level) for each in FEATURES if each.is_on(advertised)]


def finalized(advertised: Mapping[ApiKey, VersionRange]) -> list[FinalizedFeatureKey]:
    """What the cluster uses."""
    return [
        FinalizedFeatureKey(name=each.name, max_version_level=each.level, min_version_level=each.level)
        for each in FEATURES
        if each.is_on(advertised)
    ]

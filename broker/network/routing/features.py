"""The cluster features (KIP-584) that clients see.

| feature | levels | changed by |
|---|---|---|
| `eligible.leader.replicas.version` | 0 to 1 | the brokers themselves, when each of them can |
| `group.version` | 0 to 1 | UpdateFeatures; 0 disables the consumer group protocol (KIP-848) |
| `kraft.version` | 1 | nothing: there is no quorum of controllers whose members could change |
| `lowtide.metadata.version` | 0 to 3 | the brokers themselves: 1 log start reports, 2 eligible leaders, 3 erasures |
| `metadata.version` | 33 | nothing: it is the level of Kafka 4.4-IV2, whose protocol the brokers follow |
| `share.version` | 0 to 2 | UpdateFeatures; 0 disables share groups (KIP-932), 1 their dead letters (KIP-1191) |
| `streams.version` | 0 to 1 | UpdateFeatures; 0 disables streams groups (KIP-1071) |
| `transaction.version` | 0 to 2 | UpdateFeatures; from 2 on each transaction has its own epoch (KIP-890) |

A level is advertised only while the APIs that it needs are served in these versions. So a capped API (`--max-version`)
withdraws its feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.network.routing.routes import VersionRange
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.api_versions import FinalizedFeatureKey, SupportedFeatureKey
from lowtide.replication.feature_updates import FeatureState

GROUP_VERSION: Final = "group.version"
GROUP_LEVEL: Final = 1
SHARE_VERSION: Final = "share.version"
SHARE_LEVEL: Final = 1
DEAD_LETTER_LEVEL: Final = 2
"""From this level of `share.version` on share groups have dead letters."""

STREAMS_VERSION: Final = "streams.version"
STREAMS_LEVEL: Final = 1
KAFKA_RELEASE_LEVEL: Final = 33
"""The level of `metadata.version` that Kafka's tools show as 4.4-IV2."""
KRAFT_LEVEL: Final = 1
"""The level of `kraft.version` that tools ask for with every release since 4.0."""

_AGREED: Final = "The brokers agree on it by themselves, when each of them can, and never take it back."
_NO_QUORUM: Final = "The metadata are not kept by a quorum of controllers, so it has no meaning here."
_RELEASE: Final = (
    "It names the release of Kafka whose protocol the brokers follow: another version of Lowtide may have another one."
)


class ClusterFeature(msgspec.Struct, frozen=True):
    """A feature that clients can set from level 0 (off) up to `level`, which `needs` these versions of APIs."""

    name: str
    level: int
    needs: Mapping[ApiKey, int]

    def is_on(self, advertised: Mapping[ApiKey, VersionRange]) -> bool:
        """Returns whether all needed versions are advertised."""
        return all(key in advertised and advertised[key].maximum >= version for key, version in self.needs.items())


FEATURES: Final = (
    ClusterFeature(GROUP_VERSION, GROUP_LEVEL, {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1, ApiKey.CONSUMER_GROUP_DESCRIBE: 0}),
    ClusterFeature(
        SHARE_VERSION,
        DEAD_LETTER_LEVEL,
        {
            ApiKey.SHARE_GROUP_HEARTBEAT: 1,
            ApiKey.SHARE_GROUP_DESCRIBE: 1,
            ApiKey.SHARE_FETCH: 1,
            ApiKey.SHARE_ACKNOWLEDGE: 1,
        },
    ),
    ClusterFeature(
        STREAMS_VERSION, STREAMS_LEVEL, {ApiKey.STREAMS_GROUP_HEARTBEAT: 0, ApiKey.STREAMS_GROUP_DESCRIBE: 0}
    ),
    ClusterFeature("transaction.version", 2, {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}),
)


def features_of(image: MetadataImage, advertised: Mapping[ApiKey, VersionRange]) -> dict[str, FeatureState]:
    """Returns all features of a cluster by name, in order."""
    eligible = int(image.has_eligible_leaders)
    agreed = (image.log_start_reporting, image.has_eligible_leaders, image.erases_records)
    own_level = agreed.index(False) if False in agreed else len(agreed)
    states = [
        FeatureState("eligible.leader.replicas.version", 0, 1, eligible, _AGREED),
        FeatureState("kraft.version", KRAFT_LEVEL, KRAFT_LEVEL, KRAFT_LEVEL, _NO_QUORUM),
        FeatureState("lowtide.metadata.version", 0, len(agreed), own_level, _AGREED),
        FeatureState("metadata.version", KAFKA_RELEASE_LEVEL, KAFKA_RELEASE_LEVEL, KAFKA_RELEASE_LEVEL, _RELEASE),
        *(
            FeatureState(each.name, 0, each.level, image.features.level(each.name, each.level))
            for each in FEATURES
            if each.is_on(advertised)
        ),
    ]
    return {state.name: state for state in sorted(states, key=lambda state: state.name)}


def serves_consumer_groups(image: MetadataImage) -> bool:
    """Returns whether the cluster supports the consumer group protocol."""
    return image.features.level(GROUP_VERSION, GROUP_LEVEL) >= GROUP_LEVEL


def serves_share_groups(image: MetadataImage) -> bool:
    """Returns whether the cluster supports share groups."""
    return image.features.level(SHARE_VERSION, DEAD_LETTER_LEVEL) >= SHARE_LEVEL


def has_dead_letters(image: MetadataImage) -> bool:
    """Returns whether share groups can have dead letters in the cluster."""
    return image.features.level(SHARE_VERSION, DEAD_LETTER_LEVEL) >= DEAD_LETTER_LEVEL


def serves_streams_groups(image: MetadataImage) -> bool:
    """Returns whether the cluster supports streams groups."""
    return image.features.level(STREAMS_VERSION, STREAMS_LEVEL) >= STREAMS_LEVEL


def supported(features: Mapping[str, FeatureState], *, from_0: bool) -> list[SupportedFeatureKey]:
    """Returns the levels that this broker supports; without `from_0` only of features that can't be off."""
    return [
        SupportedFeatureKey(name=each.name, min_version=each.lowest, max_version=each.highest)
        for each in features.values()
        if from_0 or each.lowest > 0
    ]


def finalized(features: Mapping[str, FeatureState]) -> list[FinalizedFeatureKey]:
    """Returns the levels that the cluster uses."""
    return [
        FinalizedFeatureKey(name=each.name, max_version_level=each.level, min_version_level=each.level)
        for each in features.values()
        if each.level > 0
    ]

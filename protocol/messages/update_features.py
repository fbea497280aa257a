"""UpdateFeatures (key 57): upgrades, downgrades or disables features of the cluster (KIP-584).

Version 1 adds types of downgrades and validation, version 2 has a response without rows (KIP-778).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Versions, versions


class FeatureUpdateKey(Message, kw_only=True):
    """The new level of a feature; 0 disables it."""

    feature: String
    max_version_level: Int16
    allow_downgrade: Annotated[Bool, Versions("0")] = False
    upgrade_type: Annotated[Int8, Versions("1+")] = 1


@versions("0-2", flexible="0+")
class UpdateFeaturesRequest(ApiMessage, kw_only=True):
    timeout_ms: Int32 = 60_000
    feature_updates: list[FeatureUpdateKey] = msgspec.field(default_factory=list)
    validate_only: Annotated[Bool, Versions("1+")] = False


class UpdatableFeatureResult(Message, kw_only=True):
    feature: String
    error_code: Int16 = 0
    error_message: String | None = None


@versions("0-2", flexible="0+")
class UpdateFeaturesResponse(ApiMessage, kw_only=True):
    """Without an error there is one row per feature, up to version 1."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Annotated[list[UpdatableFeatureResult], Versions("0-1")] = msgspec.field(default_factory=list)

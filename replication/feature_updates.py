"""What an operator changes about the features of the cluster (KIP-584): levels that are raised, lowered and switched off.

Guards: a level is changed only while every live broker takes it from the metadata, and only to one that is supported; what the brokers
agree on by themselves is never changed here. All updates of a request are carried out, or none.

Source: Kafka's `FeatureControlManager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import NO_CHANGE, ChangePlan, Step
from lowtide.metadata.records import FEATURE_LEVELS_LEVEL, encode
from lowtide.metadata.store import Compare, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage


class UpgradeType(IntEnum):
    """Which way a level may go."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureState(msgspec.Struct, frozen=True):
    """A feature: the levels that the brokers know, both inclusive, and the one that the cluster uses.

    `fixed` says in a sentence why clients can't change the level; it is empty where they can.
    """

    name: str
    lowest: int
    highest: int
    level: int
    fixed: str = ""


class FeatureUpdate(msgspec.Struct, frozen=True):
    """A level that is wanted. `upgrade_type` is a number of `UpgradeType`, or another one that a client sent."""

    name: str
    level: int
    upgrade_type: int


class FeatureChange(msgspec.Struct, frozen=True):
    """How the levels are changed."""

    plan: ChangePlan


def plan_feature_updates(
    image: MetadataImage, updates: Iterable[FeatureUpdate], features: Mapping[str, FeatureState]
) -> FeatureChange | Refusal:
    """How the features get the levels that are wanted; `features` are those of the same image.

    A level that is the cluster's already may be asked for, also of a feature that can't be changed. Refusals:
    INVALID_UPDATE_VERSION for the first update that isn't possible, FEATURE_UPDATE_FAILED while a broker runs that
    would not notice.
    """
    levels = dict(image.features.levels)
    changed = False
    for update in updates:
        state = features.get(update.name)
        reason = _refusal(update, state)
        if reason is not None:
            return Refusal(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.level} for feature {update.name}. {reason}",
            )
        assert state is not None
        if not state.fixed and levels.get(update.name, state.highest) != update.level:
            levels[update.name] = update.level
            changed = True
    if not changed:
        return FeatureChange(NO_CHANGE)
    old = [
        broker_id for broker_id, broker in sorted(image.brokers.items()) if broker.metadata_level < FEATURE_LEVELS_LEVEL
    ]
    if old:
        text = f"Brokers {old} do not take the levels of features from the metadata: upgrade them first."
        return Refusal(ErrorCode.FEATURE_UPDATE_FAILED, text)
    record = msgspec.structs.replace(image.features, levels=levels)
    unchanged = Compare(keys.FEATURES, "modify", "==", image.features_revision)
    return FeatureChange(ChangePlan((Step((Put(keys.FEATURES, encode(record)),), (unchanged,)),)))


def _refusal(update: FeatureUpdate, state: FeatureState | None) -> str | None:
    """Why a level can't be had, in Kafka's order and, where it has them, its words."""
    wanted, kind = update.level, update.upgrade_type
    if kind not in tuple(UpgradeType):
        return "The controller does not support the given upgrade type."
    if wanted < 0:
        return "A feature version cannot be less than 0."
    if state is None:
        return "This cluster does not support this feature."
    reasons = (
        (
            not state.lowest <= wanted <= state.highest,
            f"This cluster only supports versions {state.lowest}-{state.highest}",
        ),
        (
            wanted < state.level and kind == UpgradeType.UPGRADE,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        ),
        (wanted > state.level and kind != UpgradeType.UPGRADE, "Can't downgrade to a newer version."),
        (wanted != state.level and bool(state.fixed), state.fixed),
    )
    return next((reason for holds, reason in reasons if holds), None)

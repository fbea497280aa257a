"""Plans changes of feature levels that an operator requests (KIP-584).

Guards: a level changes only while every live broker reads it from the metadata, and only to a supported level. Features
that brokers agree on by themselves never change here. All updates of a request take effect, or none.

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
    """The allowed direction of a change."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureState(msgspec.Struct, frozen=True):
    """A feature: the lowest and highest level that the brokers support, both inclusive, and the cluster's level.

    `fixed` says in a sentence why clients can't change the level; it is empty if they can.
    """

    name: str
    lowest: int
    highest: int
    level: int
    fixed: str = ""


class FeatureUpdate(msgspec.Struct, frozen=True):
    """A requested level. `upgrade_type` is a number of `UpgradeType`, or an invalid one that a client sent."""

    name: str
    level: int
    upgrade_type: int


def plan_feature_updates(
    image: MetadataImage, updates: Iterable[FeatureUpdate], features: Mapping[str, FeatureState]
) -> ChangePlan | Refusal:
    """Plans the requested feature levels; `features` are those of the same image.

    The current level may be requested, also for a fixed feature. Errors: INVALID_UPDATE_VERSION for the first invalid
    update, FEATURE_UPDATE_FAILED while a live broker would not notice the change.
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
        return NO_CHANGE
    old = [
        broker_id for broker_id, broker in sorted(image.brokers.items()) if broker.metadata_level < FEATURE_LEVELS_LEVEL
    ]
    if old:
        text = f"Brokers {old} do not take the levels of features from the metadata: upgrade them first."
        return Refusal(ErrorCode.FEATURE_UPDATE_FAILED, text)
    record = msgspec.structs.replace(image.features, levels=levels)
    unchanged = Compare(keys.FEATURES, "modify", "==", image.features_revision)
    return ChangePlan((Step((Put(keys.FEATURES, encode(record)),), (unchanged,)),))


def _refusal(update: FeatureUpdate, state: FeatureState | None) -> str | None:
    """Returns why a level is refused, in Kafka's order and where possible Kafka's words."""
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
            (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade."
            ),
        ),
        (wanted > state.level and kind != UpgradeType.UPGRADE, "Can't downgrade to a newer version."),
        (wanted != state.level and bool(state.fixed), state.fixed),
    )
    return next((reason for holds, reason in reasons if holds), None)

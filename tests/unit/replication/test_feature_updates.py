"""Levels of features that clients change: what is refused, in which words, and what is written."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import BrokerImage, MetadataImage
from lowtide.metadata.records import ELIGIBLE_LEADERS_LEVEL, FEATURE_LEVELS_LEVEL, FeaturesRecord, decode
from lowtide.metadata.store import Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.feature_updates import (
    FeatureState,
    FeatureUpdate,
    UpgradeType,
    plan_feature_updates,
)
from lowtide.replication.refusal import Refusal

UP, DOWN, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE
BROKERS = {number: BrokerImage(number, 10 * number, (), metadata_level=FEATURE_LEVELS_LEVEL) for number in (1, 2)}


def image(**levels: int) -> MetadataImage:
    return MetadataImage(revision=9, brokers=BROKERS, features=FeaturesRecord(1, 1, levels), features_revision=7)


def states(of: MetadataImage) -> dict[str, FeatureState]:
    found = [
        FeatureState("fixed", 3, 4, 4, "It stays."),
        FeatureState("other", 0, 1, of.features.level("other", 1)),
        FeatureState("some", 0, 2, of.features.level("some", 2)),
    ]
    return {state.name: state for state in found}


def plan(of: MetadataImage, *updates: tuple[str, int, int]) -> ChangePlan | Refusal:
    return plan_feature_updates(of, [FeatureUpdate(*each) for each in updates], states(of))


def written(of: MetadataImage, *updates: tuple[str, int, int]) -> FeaturesRecord | None:
    planned = plan(of, *updates)
    assert isinstance(planned, ChangePlan)
    if planned.is_empty:
        return None
    [step] = planned.steps
    [put] = step.operations
    assert isinstance(put, Put)
    assert [(compare.key, compare.argument) for compare in step.compares] == [(b"features", 7)]
    return decode(put.key, put.value, FeaturesRecord)


@pytest.mark.parametrize("kind", [DOWN, UNSAFE])
def test_levels_fall_and_rise(kind: UpgradeType) -> None:
    """What the brokers have agreed on stays as it is."""
    assert written(image(), ("some", 0, kind)) == FeaturesRecord(1, 1, {"some": 0})
    assert written(image(some=0), ("some", 2, UP), ("other", 0, kind)) == FeaturesRecord(1, 1, {"some": 2, "other": 0})


@pytest.mark.parametrize("kind", [UP, DOWN])
@pytest.mark.parametrize(("name", "level"), [("some", 2), ("fixed", 4)])
def test_the_level_that_the_cluster_has_may_be_asked_for(name: str, level: int, kind: UpgradeType) -> None:
    assert written(image(), (name, level, kind)) is None


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (("some", 1, 0), "does not support the given upgrade type"),
        (("some", 1, 9), "does not support the given upgrade type"),
        (("some", -1, DOWN), "cannot be less than 0"),
        (("unknown", 1, UP), "does not support this feature"),
        (("some", 3, UP), "only supports versions 0-2"),
        (("fixed", 2, DOWN), "only supports versions 3-4"),
        (("some", 1, UP), "without setting the upgrade type"),
        (("fixed", 3, UNSAFE), "It stays."),
    ],
)
def test_what_is_not_possible_is_refused_and_nothing_is_changed(update: tuple[str, int, int], says: str) -> None:
    """Also where another update of the request is possible."""
    for updates in ([update], [("other", 0, DOWN), update]):
        refused = plan(image(), *updates)
        assert isinstance(refused, Refusal)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert refused.message.startswith(f"Invalid update version {update[1]} for feature {update[0]}. ")
        assert says in refused.message


def test_a_downgrade_does_not_raise_a_level() -> None:
    refused = plan(image(some=0), ("some", 2, DOWN))
    assert isinstance(refused, Refusal)
    assert "Can't downgrade to a newer version." in refused.message


def test_nothing_is_changed_while_a_broker_would_not_notice() -> None:
    old = msgspec.structs.replace(BROKERS[2], metadata_level=ELIGIBLE_LEADERS_LEVEL)
    mixed = msgspec.structs.replace(image(), brokers={**BROKERS, 2: old})
    refused = plan(mixed, ("some", 0, DOWN))
    assert isinstance(refused, Refusal)
    assert (refused.error_code, "[2]" in refused.message) == (ErrorCode.FEATURE_UPDATE_FAILED, True)
    assert written(mixed, ("some", 2, UP)) is None


def test_a_level_above_those_that_are_known_counts_as_the_highest() -> None:
    """A later version wrote it."""
    assert FeaturesRecord(levels={"some": 9}).level("some", 2) == 2

"""UpdateFeatures: when a broker's own image shows what the controller has changed."""

from __future__ import annotations

import pytest

from lowtide.broker.handlers.update_features import shows
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import FeaturesRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse


def is_shown(
    levels: dict[str, int], name: str, level: int, *, check: bool = False, error: ErrorCode = ErrorCode.NONE
) -> bool:
    row = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=2)
    request = UpdateFeaturesRequest(feature_updates=[row], validate_only=check)
    return shows(
        request, UpdateFeaturesResponse(error_code=error), MetadataImage(features=FeaturesRecord(1, 1, levels))
    )


def test_a_level_that_was_never_set_is_the_highest_one() -> None:
    """So the first downgrade is waited for, and a level that the cluster had already is not."""
    assert not is_shown({}, "transaction.version", 1)
    assert is_shown({"transaction.version": 1}, "transaction.version", 1)
    assert is_shown({}, "transaction.version", 2)
    assert not is_shown({"transaction.version": 1}, "transaction.version", 2)


@pytest.mark.parametrize("name", ["metadata.version", "eligible.leader.replicas.version"])
def test_levels_that_clients_cannot_change_are_not_waited_for(name: str) -> None:
    assert is_shown({}, name, 1)


def test_nothing_is_waited_for_where_nothing_was_changed() -> None:
    assert is_shown({}, "group.version", 0, check=True)
    assert is_shown({}, "group.version", 0, error=ErrorCode.INVALID_UPDATE_VERSION)

"""Standing erasures are bounded: every broker keeps all of them in memory."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import StandingRecord
from lowtide.metadata.standing_image import StandingImage
from lowtide.metadata.store import ABSENT, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import standing_changes
from lowtide.replication.refusal import Refusal
from lowtide.replication.standing_changes import plan_standing, plan_standing_end, plan_sweep_of_standing

ONE = StandingRecord(("t",), ("p*",), b"c", "User:a", 1, 100, b"s", (b"d", b"e"))


def image_with(*records: StandingRecord) -> MetadataImage:
    standing = {bytes([number]) * 16: StandingImage(record, 10 + number) for number, record in enumerate(records)}
    return MetadataImage(standing=standing)


def test_a_new_one_and_one_in_its_place() -> None:
    """Protects a concurrent change: the plan compares what it saw."""
    for image, revision in ((MetadataImage(), ABSENT), (image_with(ONE), 10)):
        plan = plan_standing(image, bytes(16), ONE)
        assert isinstance(plan, ChangePlan)
        [step] = plan.steps
        assert isinstance(step.operations[0], Put)
        assert step.compares[0].argument == revision


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("STANDING_MAX", 2, "There are 2 other standing erasures"),
        ("STANDING_SHARE", 1, "1 of one principal"),
        ("STANDING_KEYS_MAX", 5, "would have 6 keys"),
        ("STANDING_NAMES_MAX", 5, "would have 6 topics"),
    ],
)
def test_too_many_are_refused(limit: str, value: int, sentence: str) -> None:
    image = image_with(ONE, msgspec.structs.replace(ONE, principal="User:b"))
    with patch.object(standing_changes, limit, value):
        refusal = plan_standing(image, b"x" * 16, ONE)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.POLICY_VIOLATION
    assert sentence in refusal.message
    assert isinstance(plan_standing(image, b"x" * 16, ONE), ChangePlan)


def test_those_that_have_ended_are_swept() -> None:
    image = image_with(ONE, msgspec.structs.replace(ONE, ends_ms=200))
    assert plan_sweep_of_standing(image, 99).is_empty
    [step] = plan_sweep_of_standing(image, 100).steps
    assert [each for each in step.operations if isinstance(each, Delete)] == list(step.operations)
    assert len(step.operations) == 1
    [step] = plan_standing_end(image, bytes([1]) * 16).steps
    assert isinstance(step.operations[0], Delete)

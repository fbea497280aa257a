"""A partition's state and its record: one place leads from one to the other, so that no field is forgotten."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lowtide.metadata.image import PartitionImage, partition_image
from lowtide.metadata.records import PartitionRecord

ROOT = Path(__file__).resolve().parents[3]
MAKERS = {"metadata/image.py", "replication/placement.py"}
"""From a state to the record that follows it, and the record of a new partition."""

FIELDS = PartitionRecord.__struct_fields__


def test_the_state_has_all_that_the_record_has() -> None:
    assert {*PartitionImage.__struct_fields__} == {*FIELDS, "modify_revision"}


@pytest.mark.parametrize("changed", FIELDS)
def test_a_change_of_one_field_leaves_all_others(changed: str) -> None:
    before = {field: f"{field} before" for field in FIELDS} | {"partition_epoch": 7}
    state = PartitionImage(**before, modify_revision=9)
    record = state.changed(**{changed: "another"})
    expected = before | {"partition_epoch": 8} | {changed: "another"}
    assert {field: getattr(record, field) for field in FIELDS} == expected
    image = partition_image(record, 10)
    assert {field: getattr(image, field) for field in FIELDS} == expected
    assert image.modify_revision == 10


def test_no_other_place_lists_the_fields_of_a_record() -> None:
    """It would forget the one that is added next, as the recovery forgot eligible leaders."""
    found = set()
    for folder in (
        "admin",
        "broker",
        "cli",
        "console",
        "metadata",
        "replication",
        "runtime",
        "simulation",
        "storage",
        "testing",
    ):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not re.search(r"\bPartition(Record|Image)\(", text):
                continue
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            if any(
                isinstance(call.func, ast.Name) and call.func.id in {"PartitionRecord", "PartitionImage"}
                for call in calls
            ):
                found.add(str(path.relative_to(ROOT)))
    assert found == MAKERS

"""Groups of both types have one interface, and no caller checks a class."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

import lowtide.broker
from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.groups_by_id import Group
from lowtide.protocol.errors import ErrorCode

BROKER = Path(lowtide.broker.__file__).parent
FINDER = BROKER / "coordinator/modern/groups_by_id.py"


def checks_of_groups(source: str) -> list[int]:
    """Returns the lines that check whether something is a group of a type."""
    if "Group" not in source:
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            named = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if named & {"ClassicGroup", "ConsumerGroup", "Group"}:
                found.append(node.lineno)
    return found


def test_no_module_checks_the_class_of_a_group() -> None:
    """Differences between types are behind methods of the group, or of the service of its type."""
    paths = sorted(set(BROKER.rglob("*.py")) - {FINDER})
    assert len(paths) > 300
    assert [f"{path}:{line}" for path in paths for line in checks_of_groups(path.read_text(encoding="utf-8"))] == []
    assert checks_of_groups("def f(group):\n    return isinstance(group, (int, ClassicGroup))") == [2]


def test_every_type_has_its_services() -> None:
    groups = Groups(GroupSettings(), random.Random(1))
    assert set(groups._upkeep) == set(groups._requests) == set(GroupType)


@pytest.mark.parametrize("group", [ClassicGroup("g", wall_ms=7), ConsumerGroup("g")])
def test_an_empty_group_of_each_type(group: ClassicGroup | ConsumerGroup) -> None:
    """The questions of a shard to groups; a group without members gives the same answers for both types."""
    asked: Group = group
    assert asked.is_unused
    assert asked.may_expire_offsets
    assert (asked.check_delete(), asked.check_offset_delete(), asked.check_fetch(None, -1)) == (ErrorCode.NONE,) * 3
    assert asked.living_subscriptions() == frozenset()
    assert not asked.is_subscribed_to("t")
    group.close()
    assert (asked.check_delete(), asked.check_offset_delete()) == (ErrorCode.GROUP_ID_NOT_FOUND,) * 2
    assert (asked.state.value, asked.is_unused) == ("Dead", False)

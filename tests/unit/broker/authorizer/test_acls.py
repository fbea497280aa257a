"""What a rule may say, and which rules a filter means."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.broker.authorizer.acls import AclFilter, fault_of
from lowtide.metadata.records import AclRecord

GOOD = AclRecord(2, "t", 3, "User:a", "*", 3, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": 4},
        {"resource_name": ""},
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 8},
        {"pattern_type": 0},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"operation": 0},
        {"operation": 1},
        {"operation": 16},
        {"permission": 0},
        {"permission": 1},
        {"host": ""},
        {"host": "10.0.0.0/8"},
        {"host": "broker-1"},
        {"host": "[::1]"},
        {"principal": "a"},
        {"principal": ""},
        {"principal": "User:"},
    ],
)
def test_what_no_rule_can_say(change: dict[str, Any]) -> None:
    assert fault_of(replace(GOOD, **change))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"resource_type": 4, "resource_name": "kafka-cluster"},
        {"operation": 2},
        {"operation": 15},
        {"pattern_type": 4},
    ],
)
def test_what_a_rule_can_say(change: dict[str, Any]) -> None:
    assert fault_of(replace(GOOD, **change)) is None


LITERAL, STAR, PREFIX = GOOD, replace(GOOD, resource_name="*"), replace(GOOD, resource_name="t", pattern_type=4)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), [LITERAL, STAR, PREFIX]),
        (AclFilter(resource_name="t"), [LITERAL, PREFIX]),
        (AclFilter(resource_name="t", pattern_type=3), [LITERAL]),
        (AclFilter(resource_name="t", pattern_type=4), [PREFIX]),
        (AclFilter(resource_name="t", pattern_type=2), [LITERAL, STAR, PREFIX]),
        (AclFilter(resource_name="tide", pattern_type=2), [STAR, PREFIX]),
        (AclFilter(resource_name="u", pattern_type=2), [STAR]),
        (AclFilter(resource_name="*", pattern_type=3), [STAR]),
        (AclFilter(pattern_type=2), [LITERAL, STAR, PREFIX]),
        (AclFilter(resource_type=3), []),
        (AclFilter(principal="User:b"), []),
        (AclFilter(host="10.0.0.1"), []),
        (AclFilter(host="*"), [LITERAL, STAR, PREFIX]),
        (AclFilter(operation=2), []),
        (AclFilter(permission=2), []),
        (AclFilter(2, "t", 3, "User:a", "*", 3, 3), [LITERAL]),
    ],
)
def test_what_a_filter_means(wanted: AclFilter, found: list[AclRecord]) -> None:
    assert wanted.fault is None
    assert [acl for acl in (LITERAL, STAR, PREFIX) if wanted.matches(acl)] == found


@pytest.mark.parametrize(
    "change", [{"resource_type": 0}, {"resource_type": 8}, {"pattern_type": 5}, {"operation": 0}, {"permission": 4}]
)
def test_filters_that_there_are_not(change: dict[str, int]) -> None:
    assert AclFilter(**change).fault


def test_a_filter_finds_every_spelling_of_an_address() -> None:
    """Those of rules of older versions too.

    What is no address is found as it is written, so that such a rule can be removed.
    """
    acls = [replace(GOOD, host=host) for host in ("::1", "0:0:0:0:0:0:0:1", "broker-1")]
    assert [AclFilter(host="::0001").matches(acl) for acl in acls] == [True, True, False]
    assert [AclFilter(host="broker-1").matches(acl) for acl in acls] == [False, False, True]

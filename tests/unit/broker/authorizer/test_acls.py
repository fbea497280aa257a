"""What a rule may say, and which rules a filter means."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.broker.authorizer.acls import AclSelector, fault_of
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
        {"host": "10.0.0.0/33"},
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
        (AclSelector(), [LITERAL, STAR, PREFIX]),
        (AclSelector(resource_name="t"), [LITERAL, PREFIX]),
        (AclSelector(resource_name="t", pattern_type=3), [LITERAL]),
        (AclSelector(resource_name="t", pattern_type=4), [PREFIX]),
        (AclSelector(resource_name="t", pattern_type=2), [LITERAL, STAR, PREFIX]),
        (AclSelector(resource_name="tide", pattern_type=2), [STAR, PREFIX]),
        (AclSelector(resource_name="u", pattern_type=2), [STAR]),
        (AclSelector(resource_name="*", pattern_type=3), [STAR]),
        (AclSelector(pattern_type=2), [LITERAL, STAR, PREFIX]),
        (AclSelector(resource_type=3), []),
        (AclSelector(principal="User:b"), []),
        (AclSelector(host="10.0.0.1"), []),
        (AclSelector(host="*"), [LITERAL, STAR, PREFIX]),
        (AclSelector(operation=2), []),
        (AclSelector(permission=2), []),
        (AclSelector(2, "t", 3, "User:a", "*", 3, 3), [LITERAL]),
    ],
)
def test_what_a_filter_means(wanted: AclSelector, found: list[AclRecord]) -> None:
    assert wanted.fault is None
    assert [acl for acl in (LITERAL, STAR, PREFIX) if wanted.matches(acl)] == found


@pytest.mark.parametrize(
    "change", [{"resource_type": 0}, {"resource_type": 8}, {"pattern_type": 5}, {"operation": 0}, {"permission": 4}]
)
def test_filters_that_there_are_not(change: dict[str, int]) -> None:
    assert AclSelector(**change).fault


def test_a_filter_finds_every_spelling_of_an_address() -> None:
    """Those of rules of older versions too.

    What is no address is found as it is written, so that such a rule can be removed.
    """
    ranges = [replace(GOOD, host=host) for host in ("10.0.0.0/8", "10.0.0.0/9", "10.0.0.0")]
    assert [AclSelector(host="10.1.2.3/8").matches(acl) for acl in ranges] == [True, False, False]
    acls = [replace(GOOD, host=host) for host in ("::1", "0:0:0:0:0:0:0:1", "broker-1")]
    assert [AclSelector(host="::0001").matches(acl) for acl in acls] == [True, True, False]
    assert [AclSelector(host="broker-1").matches(acl) for acl in acls] == [False, False, True]

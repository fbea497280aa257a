"""Kafka's rules of precedence, by example and against a naive reading of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.authorizer.acl_index import AclIndex, decide, decide_by_type
from lowtide.broker.authorizer.acls import PatternType, Permission
from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, topic
from lowtide.metadata.records import AclRecord
from tests.examples import examples

HOST = "10.0.0.1"


def rule(
    text: str,
    operation: Operation = Operation.READ,
    *,
    principal: str = "User:a",
    host: str = "*",
    kind: int = ResourceType.TOPIC,
) -> AclRecord:
    """`+name` allows, `-name` denies; with `...` at the end a prefix."""
    permission = Permission.ALLOW if text[0] == "+" else Permission.DENY
    pattern = PatternType.PREFIXED if text.endswith("...") else PatternType.LITERAL
    return AclRecord(kind, text[1:].removesuffix("..."), pattern, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("rules", "name", "allowed"),
    [
        ([], "t", False),
        ([rule("+t")], "t", True),
        ([rule("+t")], "tt", False),
        ([rule("+t...")], "tt", True),
        ([rule("+t...")], "t", True),
        ([rule("+tt...")], "t", False),
        ([rule("+*")], "t", True),
        ([rule("+*...")], "t", False),
        ([rule("+t"), rule("-t...")], "t", False),
        ([rule("+t"), rule("-*")], "t", False),
        ([rule("+*"), rule("-t")], "t", False),
        ([rule("+*"), rule("-t")], "u", True),
        ([rule("+t", principal="User:*")], "t", True),
        ([rule("+t", principal="User:b")], "t", False),
        ([rule("+t", principal="Group:a")], "t", False),
        ([rule("+t", host=HOST)], "t", True),
        ([rule("+t", host="10.0.0.2")], "t", False),
        ([rule("+t", host="10.0.0.0/24")], "t", True),
        ([rule("+t", host="10.0.1.0/24")], "t", False),
        ([rule("+t"), rule("-t", host="10.0.0.0/8")], "t", False),
        ([rule("+t", host="10.0.0.0/32"), rule("-t", host="10.0.0.2/31")], "t", False),
        ([rule("+t", host=HOST), rule("-t", host="::/0")], "t", True),
        ([rule("+t"), rule("-t", host=HOST)], "t", False),
        ([rule("+t"), rule("-t", host="::ffff:10.0.0.1")], "t", False),
        ([rule("+t"), rule("-t", host="0:0:0:0:0:ffff:a00:1")], "t", False),
        ([rule("+t", Operation.ALL)], "t", True),
        ([rule("+t"), rule("-t", Operation.ALL)], "t", False),
        ([rule("+t"), rule("-t", Operation.WRITE)], "t", True),
        ([rule("+t", kind=ResourceType.GROUP)], "t", False),
    ],
)
def test_which_rule_wins(rules: Sequence[AclRecord], name: str, allowed: bool) -> None:
    for order in (rules, rules[::-1]):
        assert decide(AclIndex.of(order), "User:a", HOST, Operation.READ, topic(name)).allowed is allowed


IMPLIES = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


@pytest.mark.parametrize("asked", list(Operation)[2:])
def test_what_is_implied(asked: Operation) -> None:
    """An allowance of reading, writing, deleting or altering shows the resource; a denial of them does not hide it."""
    for given_ in list(Operation)[1:]:
        allows = given_ in (asked, Operation.ALL) or given_ in IMPLIES.get(asked, ())
        assert decide(AclIndex.of([rule("+t", given_)]), "User:a", HOST, asked, topic("t")).allowed == allows
        denying = decide(
            AclIndex.of([rule("+*", Operation.ALL), rule("-t", given_)]), "User:a", HOST, asked, topic("t")
        )
        assert denying.allowed == (given_ not in (asked, Operation.ALL))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule("+t")], True),
        ([rule("+t..."), rule("-*")], False),
        ([rule("+*"), rule("-t")], True),
        ([rule("+t"), rule("-t")], False),
        ([rule("+t"), rule("-t...")], False),
        ([rule("+tt"), rule("-t...")], False),
        ([rule("+t..."), rule("-tt...")], True),
        ([rule("+tt..."), rule("-t...")], False),
        ([rule("+t..."), rule("-t")], True),
        ([rule("+t", Operation.ALL)], True),
        ([rule("+t", host="10.0.0.2")], False),
        ([rule("+t"), rule("-*", principal="User:b")], True),
    ],
)
def test_any_resource_of_a_type(rules: Sequence[AclRecord], allowed: bool) -> None:
    assert decide_by_type(AclIndex.of(rules), "User:a", HOST, Operation.READ, ResourceType.TOPIC) is allowed
    assert not decide_by_type(
        AclIndex.of([rule("+t", Operation.WRITE)]), "User:a", HOST, Operation.DESCRIBE, ResourceType.TOPIC
    )


def naive(
    acls: Sequence[AclRecord], principal: str, host: str, operation: Operation, resource: Resource
) -> tuple[bool, bool]:
    """As the manual says it, rule by rule: whether it is allowed, and whether any rule is about the resource."""

    def is_about(acl: AclRecord) -> bool:
        if acl.resource_type != resource.type:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return resource.name.startswith(acl.resource_name)
        return acl.resource_name in ("*", resource.name)

    def says(acl: AclRecord, permission: Permission) -> bool:
        if (
            acl.permission != permission
            or acl.principal not in (principal, "User:*")
            or acl.host not in (host, "*", "10.0.0.0/31")
        ):
            return False
        implied = IMPLIES.get(operation, set()) if permission == Permission.ALLOW else set()
        return acl.operation in {Operation.ALL, operation, *implied}

    about = [acl for acl in acls if is_about(acl)]
    denied = any(says(acl, Permission.DENY) for acl in about)
    return not denied and any(says(acl, Permission.ALLOW) for acl in about), bool(about)


NAMES = st.text("ab*", min_size=1, max_size=4)
ACLS = st.builds(
    AclRecord,
    resource_type=st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    resource_name=NAMES,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:a", "User:b", "User:*", "Group:*"]),
    host=st.sampled_from(["*", HOST, "10.0.0.2", "10.0.0.0/31", "10.0.0.2/31"]),
    operation=st.sampled_from(
        [Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
    ),
    permission=st.sampled_from([Permission.DENY, Permission.ALLOW]),
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(ACLS, max_size=8), NAMES, st.sampled_from([Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS])
)
def test_the_index_decides_as_the_manual_says(acls: list[AclRecord], name: str, operation: Operation) -> None:
    index = AclIndex.of(acls)
    for principal in ("User:a", "User:c"):
        found = decide(index, principal, HOST, operation, topic(name))
        assert (found.allowed, found.any_rule) == naive(acls, principal, HOST, operation, topic(name))
        assert (found.rule is None) or found.rule in acls


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ACLS, max_size=8), st.sampled_from([Operation.READ, Operation.DESCRIBE]))
def test_by_type_means_that_there_is_such_a_name(acls: list[AclRecord], operation: Operation) -> None:
    """Where the rules hold no denials and no implied operations, the answer is that of some name."""
    plain = [acl for acl in acls if acl.permission == Permission.ALLOW and acl.operation in (operation, Operation.ALL)]
    names = [acl.resource_name for acl in plain if acl.resource_type == ResourceType.TOPIC]
    some = any(decide(AclIndex.of(plain), "User:a", HOST, operation, topic(name)).allowed for name in names)
    assert decide_by_type(AclIndex.of(plain), "User:a", HOST, operation, ResourceType.TOPIC) == some


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ACLS, max_size=10), st.lists(ACLS, max_size=10), NAMES)
def test_a_changed_index_is_one_made_of_what_is_left(
    before: list[AclRecord], after: list[AclRecord], name: str
) -> None:
    """Removing one rule hides no other of its resource (CVE-2024-27309)."""
    first = AclIndex.of(before)
    changed = first.changed(set(after) - set(before), set(before) - set(after))
    whole = AclIndex.of(after)
    assert changed.count == whole.count == len(set(after))
    assert set(changed.of_resource(topic(name))) == set(whole.of_resource(topic(name)))
    assert set(first.of_resource(topic(name))) == set(AclIndex.of(before).of_resource(topic(name)))


def test_a_thousand_rules_cost_a_few_look_ups() -> None:
    """Only rules that are about the resource are looked at."""
    others = [rule(f"+{number:04}...") for number in range(500)] + [rule(f"+other-{number}") for number in range(500)]
    index = AclIndex.of([*others, rule("+0007"), rule("-*", principal="User:b")])
    assert len(list(index.of_resource(topic("0007-x")))) == 2
    assert len(list(index.of_resource(CLUSTER))) == 0

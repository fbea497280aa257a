"""As much as a limit says is taken, and one more is refused; and what doesn't count against it."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.acl_image import AclChangeImage, AclImage
from lowtide.metadata.changes import STEP_PARTITIONS, ChangePlan
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import MetadataImage, TopicImage
from lowtide.metadata.records import AclChangeRecord, AclRecord, TokenRecord, encode
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import acl_changes, config_changes, delegation_token_changes, scram_changes
from lowtide.replication.config_changes import (
    KeyChange,
    Operation,
    change_configs,
    plan_client_metrics,
    plan_group_configs,
)
from lowtide.replication.refusal import MAX_MESSAGE_CHARACTERS, Refusal
from lowtide.replication.scram_changes import plan_scram
from lowtide.replication.sweep import plan_sweep, plan_sweep_of_tombstones
from lowtide.replication.topic_names import find_collision

from .test_elections import TOPIC_ID, image_of, partition
from .test_scram_changes import SHA_256, code, image, setting


def refused(plan: Any) -> bool:
    return isinstance(plan, Refusal)


# Rules


def rules(count: int, name: str = "t") -> list[AclRecord]:
    return [AclRecord(2, f"{name}{number}", 3, "User:a", "*", 3, 3) for number in range(count)]


def test_rules_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACLS_MAX", 3)
    present = MetadataImage(acls={keys.acl(encode(rule)): AclImage(rule, 1) for rule in rules(1)})
    assert not refused(acl_changes.plan_new_acls(present, rules(3))), "one of them is there"
    assert refused(acl_changes.plan_new_acls(present, rules(4)))


@pytest.mark.parametrize("count", [acl_changes.STEP_ACLS, acl_changes.STEP_ACLS + 1])
def test_rules_of_one_transaction(count: int) -> None:
    there = MetadataImage(acls={keys.acl(encode(rule)): AclImage(rule, 1) for rule in rules(count)})
    for plan in (
        acl_changes.plan_new_acls(MetadataImage(), rules(count)),
        acl_changes.plan_removed_acls(there, there.acls),
    ):
        assert isinstance(plan, ChangePlan)
        (step,) = plan.steps
        assert len(step.operations) == (count if count == acl_changes.STEP_ACLS else 1), "more are one record"


def test_bytes_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = rules(2), rules(acl_changes.STEP_ACLS + 1)
    few_bytes = sum(len(encode(rule)) for rule in few)
    whole = acl_changes.plan_new_acls(MetadataImage(), many)
    assert isinstance(whole, ChangePlan)
    whole_bytes = len(whole.steps[0].operations[0].value)
    for wanted, size_bytes in ((few, few_bytes), (many, whole_bytes)):
        monkeypatch.setattr(acl_changes, "CHANGE_BYTES_MAX", size_bytes)
        assert not refused(acl_changes.plan_new_acls(MetadataImage(), wanted))
        monkeypatch.setattr(acl_changes, "CHANGE_BYTES_MAX", size_bytes - 1)
        assert refused(acl_changes.plan_new_acls(MetadataImage(), wanted))


def test_the_rest_of_a_change_of_rules_needs_no_controller() -> None:
    """The broker that made it carries it out."""
    record = AclChangeRecord(removed=("a",))
    assert not acl_changes.plan_rest_of_change(AclChangeImage(record, 11)).needs_controller


# Credentials and tokens


def test_names_and_salts_of_credentials() -> None:
    longest = "é" * (scram_changes.NAME_BYTES_MAX // 2)
    salt = b"s" * scram_changes.SALT_BYTES_MAX
    fine = [setting(longest), setting("a", iterations=4096), setting("b", salt=salt), setting("c", salted=salt)]
    refusals = [setting(longest + "x"), setting("d", salt=salt + b"x"), setting("e", salted=salt + b"x")]
    planned = plan_scram(image().scram, [], [*fine, *refusals], b"fresh")
    codes = [code(refusal) for refusal in planned.outcomes.values()]
    assert codes == [ErrorCode.NONE] * len(fine) + [ErrorCode.UNACCEPTABLE_CREDENTIAL] * len(refusals)


def test_a_refusal_says_whether_iterations_are_too_few_or_too_many() -> None:
    planned = plan_scram(
        image().scram, [], [setting("few", iterations=4095), setting("many", iterations=16_385)], b"fresh"
    )
    assert ["Too few" in str(refusal) for refusal in planned.outcomes.values()] == [True, False]


def test_what_is_refused_anyway_keeps_its_reason_when_a_request_is_too_large() -> None:
    changes = [setting(f"user-{number}") for number in range(scram_changes.CHANGES_MAX)]
    planned = plan_scram(image().scram, [], [*changes, setting("few", iterations=1), setting("one-more")], b"fresh")
    assert code(planned.outcomes["few"]) == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert code(planned.outcomes["one-more"]) == ErrorCode.INVALID_REQUEST


def test_a_request_that_changes_nothing_brings_no_secret() -> None:
    assert plan_scram(image(secret=b"").scram, [], [setting("")], b"fresh").plan.is_empty


@pytest.mark.parametrize(
    ("salt", "salted", "deletes"), [(b"", b"", True), (b"s", b"", False), (b"", b"s", False), (b"s", b"s", False)]
)
def test_a_change_without_a_credential_deletes(salt: bytes, salted: bytes, deletes: bool) -> None:
    assert scram_changes.ScramChange("alice", SHA_256, 4096, salt, salted).deletes == deletes


@pytest.mark.parametrize("extra", [0, 1])
def test_names_of_tokens(extra: int) -> None:
    longest = "x" * delegation_token_changes.NAME_BYTES_MAX
    names = tuple("User:r" for _ in range(delegation_token_changes.RENEWERS_MAX))
    many = TokenRecord("t", "User:a", "User:a", names + ("User:s",) * extra, 0, 100, 500, {})
    long = TokenRecord("t", longest + "x" * extra, "User:a", (), 0, 100, 500, {})
    for token in (many, long):
        refusal = delegation_token_changes.check_names(token)
        assert (refusal is not None) == bool(extra)


# Configurations


@pytest.mark.parametrize(
    ("plan", "field", "limit"),
    [
        (plan_group_configs, "group_configs", "GROUPS_SET_MAX"),
        (plan_client_metrics, "client_metrics", "SUBSCRIPTIONS_MAX"),
    ],
)
def test_groups_and_subscriptions_that_have_something_set(
    monkeypatch: pytest.MonkeyPatch, plan: Any, field: str, limit: str
) -> None:
    monkeypatch.setattr(config_changes, limit, 2)
    one, two = ({name: ConfigImage({"a": "1"}, 5) for name in names} for names in (("x",), ("x", "y")))
    assert not refused(plan(MetadataImage(**{field: one}), "z", {"a": "1"}))
    full = MetadataImage(**{field: two})
    assert refused(plan(full, "z", {"a": "1"}))
    assert not refused(plan(full, "y", {"a": "2"})), "it has something set already"
    assert not refused(plan(full, "y", {}))
    assert not refused(plan(full, "z", {})), "nothing is set"


def test_a_key_without_a_value_goes_and_the_ones_behind_it_count() -> None:
    changes = [
        KeyChange("a", Operation.SET, None),
        KeyChange("b", Operation.DELETE, "x"),
        KeyChange("c", Operation.SET, "3"),
    ]
    assert change_configs({"a": "1", "b": "2"}, changes, {}.get) == {"c": "3"}


def test_the_message_of_a_refusal() -> None:
    longest = "x" * MAX_MESSAGE_CHARACTERS
    assert Refusal(ErrorCode.INVALID_CONFIG, longest).message == longest
    cut = Refusal(ErrorCode.INVALID_CONFIG, longest + 100 * "y").message
    assert cut.startswith(longest)
    assert len(cut) < MAX_MESSAGE_CHARACTERS + 10


# What is tidied up


@pytest.mark.parametrize(("revision", "swept"), [(4, True), (5, False), (6, False)])
def test_leftovers_are_swept_that_are_older_than_the_controller(revision: int, swept: bool) -> None:
    """Newer ones may be of a creation that continues."""
    leftover = partition()
    before = image_of({1: 10})
    values = {
        name: getattr(before, name)
        for name in ("revision", "controller_id", "controller_revision", "brokers", "features")
    }
    old = type(leftover)(leftover.replicas, leftover.isr, leftover.isr_epochs, 1, 5, 7, revision)
    assert plan_sweep(MetadataImage(**values, loose_partitions={TOPIC_ID: {0: old}})).is_empty != swept


def test_the_oldest_tombstones_are_swept_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "TOMBSTONES_MAX", 3)

    def swept(count: int) -> list[bytes]:
        ids = {number.to_bytes(16, "big"): 1000 - number for number in range(1, count + 1)}
        plan = plan_sweep_of_tombstones(MetadataImage(deleted_topics=ids))
        assert all(0 < len(step.operations) <= STEP_PARTITIONS for step in plan.steps)
        return [operation.key for step in plan.steps for operation in step.operations]

    assert swept(3) == []
    assert swept(4) == [keys.deleted_topic((4).to_bytes(16, "big"))]
    many = STEP_PARTITIONS + 2
    assert swept(3 + many) == [keys.deleted_topic(number.to_bytes(16, "big")) for number in range(3 + many, 3, -1)]


# Names


@pytest.mark.parametrize(
    ("name", "collides"),
    [("a.b", None), ("a_b", "a.b"), ("c.d", "c_d"), ("ab", None), ("e", None), ("e.", None), ("a.b_", None)],
)
def test_names_that_differ_in_dots_and_underscores(name: str, collides: str | None) -> None:
    topics = {each: TopicImage(each, each.encode(), (), {}, 1) for each in ("a.b", "c_d", "e")}
    assert find_collision(MetadataImage(topics=topics), name) == collides

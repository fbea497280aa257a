"""Plans of new and of removed rules."""

from __future__ import annotations

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.acl_image import AclChangeImage, AclImage
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.changes import NO_CHANGE, NOTHING_TO_WRITE, ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import NEWEST_LEVEL, AclChangeRecord, AclRecord, decode, encode
from lowtide.metadata.store import ABSENT, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.acl_changes import (
    ACLS_MAX,
    CHANGE_BYTES_MAX,
    plan_left_change,
    plan_new_acls,
    plan_removed_acls,
    plan_rest_of_change,
)
from lowtide.replication.refusal import Refusal

RULES = [AclRecord(2, f"t{number}", 3, "User:a", "*", 3, 3) for number in range(3)]
KEYS = [keys.acl(encode(rule)) for rule in RULES]
ALONE = Compare(keys.ACL_CHANGE, "modify", "==", ABSENT)
"""No change of many rules is under way."""

MANY = [AclRecord(2, f"many{number}", 3, "User:a", "*", 3, 3) for number in range(250)]
IMAGE = MetadataImage(revision=9, acls={KEYS[0]: AclImage(RULES[0], 7)})


def test_new_rules_are_one_transaction_and_known_ones_stay() -> None:
    plan = plan_new_acls(IMAGE, [*RULES, RULES[1]])
    assert isinstance(plan, ChangePlan)
    (step,) = plan.steps
    assert not plan.needs_controller
    assert step.operations == tuple(Put(key, encode(rule)) for key, rule in zip(KEYS[1:], RULES[1:], strict=True))
    assert step.compares == (*(Compare(key, "modify", "==", ABSENT) for key in KEYS[1:]), ALONE)
    assert plan_new_acls(IMAGE, RULES[:1]) is NOTHING_TO_WRITE


def test_address_ranges_wait_until_every_broker_applies_them() -> None:
    """A broker that compares hosts as text would ignore the denial of a range."""
    ranges = [*RULES, msgspec.structs.replace(RULES[1], host="10.0.0.0/8")]
    brokers = {
        number: BrokerImage(number, 1, (), metadata_level=level)
        for number, level in ((1, NEWEST_LEVEL), (2, 3), (3, 2))
    }
    image = msgspec.structs.replace(IMAGE, brokers=brokers)
    refusal = plan_new_acls(image, ranges)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "[2, 3]" in (refusal.message or "")
    assert isinstance(plan_new_acls(image, RULES), ChangePlan)
    new = {number: msgspec.structs.replace(broker, metadata_level=NEWEST_LEVEL) for number, broker in brokers.items()}
    assert isinstance(plan_new_acls(msgspec.structs.replace(IMAGE, brokers=new), ranges), ChangePlan)


def test_a_removal_compares_the_rule_that_it_saw() -> None:
    """So that one that arrives late doesn't remove what was created again since."""
    plan = plan_removed_acls(IMAGE, [*KEYS, KEYS[0]])
    assert isinstance(plan, ChangePlan)
    (step,) = plan.steps
    assert (step.operations, step.compares) == ((Delete(KEYS[0]),), (Compare(KEYS[0], "modify", "==", 7), ALONE))
    assert plan_removed_acls(IMAGE, KEYS[1:]) is NOTHING_TO_WRITE


def test_there_are_not_any_number_of_rules() -> None:
    full = MetadataImage(acls={b"%d" % number: AclImage(RULES[0], 1) for number in range(ACLS_MAX)})
    refusal = plan_new_acls(full, RULES)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.POLICY_VIOLATION


def written(plan: ChangePlan | Refusal) -> AclChangeRecord:
    """The record that a plan writes, and nothing else."""
    assert isinstance(plan, ChangePlan)
    (step,) = plan.steps
    (put,) = step.operations
    assert isinstance(put, Put)
    assert (put.key, step.compares) == (keys.ACL_CHANGE, (ALONE,))
    return decode(put.key, put.value, AclChangeRecord)


def test_more_rules_than_a_transaction_holds_are_one_record() -> None:
    change = AclChangeImage(written(plan_new_acls(IMAGE, MANY)), 11)
    assert [acl for _, _, acl in change.added()] == MANY
    assert [key for key, _, _ in change.added()] == [keys.acl(encode(acl)) for acl in MANY]
    full = MetadataImage(acls={key: AclImage(acl, 1) for key, _, acl in change.added()})
    removal = AclChangeImage(written(plan_removed_acls(full, full.acls)), 12)
    assert list(removal.removed()) == list(full.acls)


def test_then_each_rule_is_written_and_the_record_goes_with_the_last() -> None:
    record = AclChangeRecord(added=written(plan_new_acls(IMAGE, MANY)).added, removed=("1", "2"))
    steps = plan_rest_of_change(AclChangeImage(record, 11)).steps
    operations = [operation for step in steps for operation in step.operations]
    puts = [Put(keys.acl(encode(acl)), encode(acl)) for acl in MANY]
    assert operations == [*puts, Delete(b"acls/1"), Delete(b"acls/2"), Delete(keys.ACL_CHANGE)]
    assert all(step.compares == (Compare(keys.ACL_CHANGE, "modify", "==", 11),) for step in steps)


def test_a_controller_goes_on_only_with_what_was_left_before_it() -> None:
    left = AclChangeImage(AclChangeRecord(removed=("1",)), 11)
    assert plan_left_change(MetadataImage(acl_change=left, controller_revision=20)) == plan_rest_of_change(left)
    assert plan_left_change(MetadataImage(acl_change=left, controller_revision=11)) is NO_CHANGE
    assert plan_left_change(IMAGE) is NO_CHANGE


def test_a_request_is_as_large_as_the_store_takes_it() -> None:
    for count in (40, 110):
        long = [AclRecord(2, f"{number}", 3, "User:" + "a" * 30_000, "*", 3, 3) for number in range(count)]
        refusal = plan_new_acls(IMAGE, long)
        assert isinstance(refusal, Refusal)
        assert (refusal.error_code, str(CHANGE_BYTES_MAX) in refusal.message) == (ErrorCode.POLICY_VIOLATION, True)
    usual = [
        AclRecord(2, f"a-topic-of-a-team-{number}", 3, "User:an-application", "*", 3, 3) for number in range(10_000)
    ]
    assert isinstance(plan_new_acls(IMAGE, usual), ChangePlan)

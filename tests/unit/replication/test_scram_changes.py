"""Credentials set and deleted: Kafka's rules of a request, and a plan that compares all it relies on."""

from __future__ import annotations

import pytest

from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import ScramRecord, ScramSecretRecord, encode
from lowtide.metadata.store import Compare, Delete, KeyValue, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.scram import ScramMechanism, salted_password
from lowtide.replication.scram_changes import CHANGES_MAX, ScramChange, plan_scram

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALTED = salted_password(SHA_256, "pencil", b"salt", 4096)
PREFIX = b"/p/"


def image(*users: str, secret: bytes = b"s") -> MetadataImage:
    """Users of SCRAM-SHA-256, each changed at its own revision from 11 on."""
    record = encode(ScramRecord(b"salt", b"stored", b"server", 4096))
    pairs = [
        KeyValue(PREFIX + keys.scram(SHA_256, user), record, 11 + index, 11 + index, 0)
        for index, user in enumerate(users)
    ]
    if secret:
        pairs.append(KeyValue(PREFIX + keys.SCRAM_SECRET, encode(ScramSecretRecord(secret)), 5, 5, 0))
    return load_image(pairs, 20, prefix=PREFIX)


def setting(
    user: str, mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = b"salt", salted: bytes = SALTED
) -> ScramChange:
    return ScramChange(user, mechanism, iterations, salt, salted)


def code(planned: object) -> ErrorCode:
    return planned.error_code if planned is not None else ErrorCode.NONE  # type: ignore[attr-defined]


def test_a_credential_is_written_without_the_password_and_compared() -> None:
    planned = plan_scram(
        image("alice", "bob").scram,
        [ScramChange("bob", SHA_256)],
        [setting("alice"), setting("eve", SHA_512)],
        b"fresh",
    )
    assert planned.outcomes == {"bob": None, "alice": None, "eve": None}
    (step,) = planned.plan.steps
    assert not planned.plan.needs_controller
    bob, alice, eve = keys.scram(SHA_256, "bob"), keys.scram(SHA_256, "alice"), keys.scram(SHA_512, "eve")
    assert step.compares == (
        Compare(bob, "modify", "==", 12),
        Compare(alice, "modify", "==", 11),
        Compare(eve, "modify", "==", 0),
    )
    delete, put, _ = step.operations
    assert delete == Delete(bob)
    assert isinstance(put, Put)
    assert SALTED not in put.value


def test_the_first_credential_brings_the_secret() -> None:
    planned = plan_scram(image(secret=b"").scram, [], [setting("alice")], b"fresh")
    (step,) = planned.plan.steps
    assert step.operations[-1] == Put(keys.SCRAM_SECRET, encode(ScramSecretRecord(b"fresh")))
    assert step.compares[-1] == Compare(keys.SCRAM_SECRET, "create", "==", 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (setting(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("x" * 1025), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", iterations=16_384), ErrorCode.NONE),
        (setting("alice", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", salted=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (setting("alice", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_credential_that_is_none_is_refused_alone(change: ScramChange, expected: ErrorCode) -> None:
    planned = plan_scram(image().scram, [], [change, setting("bob")], b"fresh")
    assert {user: code(refusal) for user, refusal in planned.outcomes.items()} == {
        change.user: expected,
        "bob": ErrorCode.NONE,
    }


def test_what_is_not_there_is_not_deleted() -> None:
    planned = plan_scram(image("alice").scram, [ScramChange("alice", SHA_512), ScramChange("bob", 9)], [], b"fresh")
    assert [code(refusal) for refusal in planned.outcomes.values()] == [
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ]
    assert planned.plan.is_empty


def test_a_user_is_changed_once_whatever_the_mechanisms() -> None:
    planned = plan_scram(
        image("alice").scram, [ScramChange("alice", SHA_256)], [setting("alice", SHA_512), setting("bob")], b"fresh"
    )
    assert {user: code(refusal) for user, refusal in planned.outcomes.items()} == {
        "alice": ErrorCode.DUPLICATE_RESOURCE,
        "bob": 0,
    }


def test_so_many_as_one_transaction_takes() -> None:
    changes = [setting(f"user-{number}") for number in range(CHANGES_MAX + 1)]
    planned = plan_scram(image(secret=b"").scram, [], changes, b"fresh")
    assert sum(refusal is None for refusal in planned.outcomes.values()) == CHANGES_MAX
    assert code(planned.outcomes[changes[-1].user]) == ErrorCode.INVALID_REQUEST


def test_an_image_follows_and_does_not_change_what_was_handed_out() -> None:
    before = image("alice")
    assert before.scram.of(SHA_256, "alice") is not None
    assert before.scram.of(SHA_512, "alice") is None
    assert before.scram.secret == b"s"
    assert "stored" not in repr(before.scram)
    assert "secret" not in repr(ScramSecretRecord(b"secret"))

"""AlterClientQuotas: an entity changes as a whole, apart from the others of its request.

Of two requests at once none undoes the other.
"""

from __future__ import annotations

from lowtide.broker.quotas.quota_changes import ENTITIES_SET_MAX, STEP_ENTITIES, plan_quota_changes
from lowtide.metadata import keys
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.store import Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlteredQuotaEntity,
)

EMPTY = MetadataImage(revision=9)
RATE = "producer_byte_rate"


def entry(name: str | None, *operations: tuple[str, float | None], kind: str = "user") -> AlterClientQuotasEntry:
    return AlterClientQuotasEntry(
        entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name)],
        ops=[
            AlterClientQuotasOperation(key=key, value=value or 0.0, remove=value is None) for key, value in operations
        ],
    )


def image(name: str = "alice", revision: int = 5, **values: str) -> MetadataImage:
    return MetadataImage(revision=9, client_quotas={f"user={name}": ConfigImage(values, revision)})


def test_a_quota_is_written_against_what_it_was_decided_on() -> None:
    planned = plan_quota_changes(image(producer_byte_rate="1.0"), [entry("alice", (RATE, 2048.0))])
    assert planned.refusals == (None,)
    (step,) = planned.plan.steps
    key = keys.client_quotas("user=alice")
    assert step.operations == (Put(key, b'{"producer_byte_rate":"2048.0"}'),)
    assert step.compares == (Compare(key, "modify", "==", 5),)
    assert not planned.plan.needs_controller


def test_the_last_quota_that_is_removed_takes_the_key_with_it() -> None:
    planned = plan_quota_changes(
        image(producer_byte_rate="1.0"), [entry("alice", (RATE, None), ("request_percentage", None))]
    )
    assert planned.plan.steps[0].operations == (Delete(keys.client_quotas("user=alice")),)


def test_nothing_is_written_where_nothing_changes() -> None:
    planned = plan_quota_changes(
        image(producer_byte_rate="1.0"), [entry("alice", (RATE, 1.0)), entry("bob", (RATE, None))]
    )
    assert planned.plan.is_empty
    assert planned.refusals == (None, None)


def test_a_bad_key_leaves_the_whole_entity_and_only_it() -> None:
    planned = plan_quota_changes(
        EMPTY,
        [
            entry("alice", (RATE, 5.0), ("no_such_rate", 1.0)),
            entry("bob", (RATE, 5.0)),
            entry("eve", (RATE, 1.0), (RATE, 2.0)),
        ],
    )
    assert [None if refusal is None else refusal.error_code for refusal in planned.refusals] == [
        ErrorCode.INVALID_REQUEST,
        None,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [operation.key for step in planned.plan.steps for operation in step.operations] == [
        keys.client_quotas("user=bob")
    ]


def test_an_entity_that_is_named_twice_changes_once() -> None:
    planned = plan_quota_changes(EMPTY, [entry("alice", (RATE, 5.0)), entry("alice", (RATE, 6.0))])
    assert [refusal is None for refusal in planned.refusals] == [True, False]
    assert [
        operation.value for step in planned.plan.steps for operation in step.operations if isinstance(operation, Put)
    ] == [b'{"producer_byte_rate":"5.0"}']


def test_many_entities_are_written_in_steps_that_the_store_takes() -> None:
    planned = plan_quota_changes(EMPTY, [entry(f"u{number}", (RATE, 5.0)) for number in range(2 * STEP_ENTITIES + 1)])
    assert [len(step.operations) for step in planned.plan.steps] == [STEP_ENTITIES, STEP_ENTITIES, 1]


def test_there_is_a_limit_of_entities() -> None:
    full = MetadataImage(
        client_quotas={f"user=u{number}": ConfigImage({RATE: "1.0"}, 1) for number in range(ENTITIES_SET_MAX)}
    )
    planned = plan_quota_changes(full, [entry("one more", (RATE, 5.0)), entry("u1", (RATE, 7.0))])
    assert [None if refusal is None else refusal.error_code for refusal in planned.refusals] == [
        ErrorCode.POLICY_VIOLATION,
        None,
    ]


def test_an_address_has_one_quota_however_it_is_written() -> None:
    """What an older version kept in another spelling goes with the next change."""
    rate, odd, normal = "connection_creation_rate", "ip=0%3A0%3A0%3A0%3A0%3A0%3A0%3A1", keys.client_quotas("ip=%3A%3A1")
    written = plan_quota_changes(EMPTY, [entry("0:0:0:0:0:0:0:1", (rate, 5.0), kind="ip")])
    assert written.plan.steps[0].operations == (Put(normal, b'{"connection_creation_rate":"5.0"}'),)
    before = MetadataImage(revision=9, client_quotas={odd: ConfigImage({rate: "5.0"}, 7)})
    removed = plan_quota_changes(before, [entry("::1", (rate, None), kind="ip")])
    assert [step.operations for step in removed.plan.steps] == [(Delete(keys.client_quotas(odd)),)]
    changed = plan_quota_changes(before, [entry("::01", (rate, 6.0), kind="ip")])
    assert set(changed.plan.steps[0].operations) == {
        Delete(keys.client_quotas(odd)),
        Put(normal, b'{"connection_creation_rate":"6.0"}'),
    }

"""Changing configurations: the results of operations, and that a plan overwrites no change that it was not based on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import Compare, Delete, Put, check_transaction
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import topic_id_text
from lowtide.replication.config_changes import (
    KeyChange,
    Operation,
    change_configs,
    plan_broker_configs,
    plan_topic_configs,
)
from lowtide.replication.refusal import Refusal

SET, DELETE, APPEND, SUBTRACT = Operation
LISTS = {"policy": "delete", "replicas": ""}


def change(current: dict[str, str], *changes: tuple[str, Operation, str | None]) -> dict[str, str] | Refusal:
    return change_configs(current, [KeyChange(*each) for each in changes], LISTS.get)


@pytest.mark.parametrize(
    ("current", "changes", "wanted"),
    [
        ({}, [("ms", SET, "1")], {"ms": "1"}),
        ({"ms": "1"}, [("ms", SET, "2"), ("bytes", SET, "")], {"ms": "2", "bytes": ""}),
        ({"ms": "1", "bytes": "2"}, [("ms", DELETE, "ignored"), ("nothing", DELETE, None)], {"bytes": "2"}),
        ({}, [("policy", APPEND, "compact")], {"policy": "delete,compact"}),
        ({"policy": "compact"}, [("policy", APPEND, "delete,compact")], {"policy": "compact,delete"}),
        ({"policy": ""}, [("policy", APPEND, "compact")], {"policy": "compact"}),
        ({}, [("policy", SUBTRACT, "delete")], {"policy": ""}),
        ({"policy": "delete,compact"}, [("policy", SUBTRACT, "delete,never")], {"policy": "compact"}),
        ({"replicas": "0:1,0:2,0:1"}, [("replicas", SUBTRACT, "0:1")], {"replicas": "0:2,0:1"}),
        ({}, [("replicas", APPEND, " 0:1 , 1:1")], {"replicas": "0:1,1:1"}),
        ({}, [("policy", APPEND, "")], {"policy": "delete"}),
    ],
)
def test_operations(
    current: dict[str, str], changes: list[tuple[str, Operation, str | None]], wanted: dict[str, str]
) -> None:
    before = dict(current)
    assert change(current, *changes) == wanted
    assert current == before


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_are_appended_to(operation: Operation) -> None:
    """All of the changes are refused then."""
    refusal = change({}, ("bytes", SET, "1"), ("ms", operation, "1"))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code is ErrorCode.INVALID_CONFIG
    assert f"Can't {operation.name} to key ms" in refusal.message


class Cluster:
    """A store with one topic."""

    def __init__(self) -> None:
        self.engine = Engine(boot=1, revision=0, keys=())
        self.make_topic(b"A" * 16)

    def make_topic(self, topic_id: bytes) -> None:
        record = PartitionRecord(replicas=(0,), isr=(0,), isr_epochs=(1,), leader=0, leader_epoch=0, partition_epoch=0)
        self.write(
            [
                Put(keys.topic("a"), encode(TopicRecord(topic_id_text(topic_id), 1))),
                Put(keys.partition(topic_id, 0), encode(record)),
            ]
        )

    @property
    def image(self) -> MetadataImage:
        return load_image(self.engine.range(b""), self.engine.revision, prefix=b"")

    def write(self, operations: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> bool:
        staged = self.engine.stage()
        check_transaction(compares, operations, ())
        succeeded = self.engine.evaluate(staged, compares, operations, ()).succeeded
        self.engine.commit(staged)
        return succeeded

    def make(self, plan: ChangePlan) -> bool:
        assert plan.is_empty or not plan.needs_controller
        return all(self.write(step.operations, step.compares) for step in plan.steps)

    def plan(self, wanted: dict[str, str]) -> ChangePlan:
        return plan_topic_configs(self.image.topics["a"], wanted)


def test_a_topics_configuration_is_set_changed_and_cleared() -> None:
    cluster = Cluster()
    for wanted in ({"ms": "1"}, {"ms": "2", "bytes": "3"}, {}, {"bytes": "4"}):
        assert cluster.make(cluster.plan(wanted))
        assert cluster.image.topics["a"].configs == wanted
        assert cluster.plan(wanted).is_empty
    assert cluster.make(cluster.plan({}))
    assert keys.topic_config("a") not in {pair.key for pair in cluster.engine.range(b"")}


@pytest.mark.parametrize("before", [{}, {"ms": "1"}])
@pytest.mark.parametrize("first", [{"ms": "2"}, {}, {"bytes": "1"}])
def test_of_two_changes_decided_on_the_same_state_one_is_made(before: dict[str, str], first: dict[str, str]) -> None:
    """The second must be decided again, or it would undo the first."""
    cluster = Cluster()
    cluster.make(cluster.plan(before))
    one, other = cluster.plan(first), cluster.plan({"other": "1"})
    if one.is_empty:
        return
    assert cluster.make(one)
    assert not cluster.make(other)
    assert cluster.image.topics["a"].configs == first
    assert cluster.make(cluster.plan({**first, "other": "1"}))


def test_nothing_is_set_on_a_topic_that_was_re_created() -> None:
    """The plan was for the earlier topic. The same holds for a deleted topic."""
    cluster = Cluster()
    plan = cluster.plan({"ms": "1"})
    cluster.write([Delete(keys.topic("a")), Delete(keys.partition(b"A" * 16, 0))])
    assert not cluster.make(plan)
    cluster.make_topic(b"B" * 16)
    assert not cluster.make(plan)
    assert cluster.image.topics["a"].configs == {}


@pytest.mark.parametrize("name", ["", "0", "17"])
def test_brokers_are_configured_one_by_one_and_together(name: str) -> None:
    cluster = Cluster()
    cluster.make(plan_broker_configs(cluster.image, "3", {"kept": "1"}))
    for wanted in ({"ms": "1"}, {"ms": "2"}, {}):
        stale = plan_broker_configs(cluster.image, name, {"stale": "1"})
        assert cluster.make(plan_broker_configs(cluster.image, name, wanted))
        assert not cluster.make(stale)
        found = {each: image.configs for each, image in cluster.image.broker_configs.items()}
        assert found == {"3": {"kept": "1"}, **({name: wanted} if wanted else {})}
    assert plan_broker_configs(cluster.image, name, {}).is_empty


def test_a_refusal_is_short_enough_to_be_sent() -> None:
    """This holds for any quoted text, also with four bytes a character."""
    assert len(Refusal(ErrorCode.INVALID_CONFIG, "\U0001f30a" * 40_000).message.encode()) < 32_767
    assert Refusal(ErrorCode.INVALID_CONFIG, "short").message == "short"

"""Requests to share coordinators, here and elsewhere: one for each broker, and an outcome for each partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.coordinator.share_state.share_coordinator import SHARE_TOPIC, coordinator_key
from lowtide.broker.coordinator.share_state.share_persister import STATES_PURPOSE, SharePersister
from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import StateBatch, StateWrite, StoredState
from lowtide.broker.pending import Pending
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateResponse,
    DeleteStatePartitionResult,
    DeleteStateResult,
)
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateResponse,
    InitializeStatePartitionResult,
    InitializeStateResult,
)
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateResponse,
    ReadStatePartitionResult,
    ReadStateResult,
    ShareStateBatch,
)
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryResponse,
    SummaryStatePartitionResult,
    SummaryStateResult,
)
from lowtide.protocol.messages.write_share_group_state import (
    WriteShareGroupStateResponse,
    WriteStatePartitionResult,
    WriteStateResult,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId

from . import coordinator_world
from .coordinator_world import HERE, NONE, PLACE, THERE, T, topic

GROUP = "g"
U: TopicId = topic("u", HERE).topic_id
NETWORK, UNAVAILABLE, NOT_COORDINATOR = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

KINDS = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (
        InitializeShareGroupStateResponse,
        InitializeStateResult,
        InitializeStatePartitionResult,
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: (DeleteShareGroupStateResponse, DeleteStateResult, DeleteStatePartitionResult),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (
        ReadShareGroupStateSummaryResponse,
        SummaryStateResult,
        SummaryStatePartitionResult,
    ),
    ApiKey.READ_SHARE_GROUP_STATE: (ReadShareGroupStateResponse, ReadStateResult, ReadStatePartitionResult),
    ApiKey.WRITE_SHARE_GROUP_STATE: (WriteShareGroupStateResponse, WriteStateResult, WriteStatePartitionResult),
}


class World(coordinator_world.World):
    """A persister over such a coordinator; `peer` is what another broker answers about a partition, by its number."""

    def __init__(self, *leaders: int) -> None:
        super().__init__(*leaders)
        coordinators = [topic(SHARE_TOPIC, *leaders)] if leaders else []
        self.set_topics(topic("t", *[HERE] * 40), topic("u", HERE, HERE), *coordinators)
        self.requests: list[tuple[ApiKey, Any]] = []
        self.peer: dict[int, dict[str, Any]] = {}
        self.peer_error: PeerError | None = None
        peers: Any = self
        self.persister = SharePersister(self.coordinator, peers)

    def client_of(self, broker: Any, purpose: str) -> Any:
        assert (broker.broker_id, purpose) == (THERE, STATES_PURPOSE)
        return self

    async def request(self, key: ApiKey, version: int, request: Any, _timeout_ms: int) -> Any:
        assert version == API[key].max_version
        self.requests.append((key, request))
        if self.peer_error is not None:
            raise self.peer_error
        response, result, row = KINDS[key]
        return response(
            results=[
                result(
                    topic_id=each.topic_id,
                    partitions=[row(partition=number, **fields) for number, fields in self.peer.items()],
                )
                for each in request.topics
            ]
        )

    def place_of(self, leader: int) -> SharePlace:
        """A partition of `t` whose coordinator's partition is 0 for this broker, and 1 for the other."""
        wanted = 0 if leader == HERE else 1
        return next(
            place for place in (SharePlace(GROUP, T, number) for number in range(40))
            if self.coordinator.topic.partition_of(coordinator_key(place)) == wanted
        )  # fmt: skip


def initialize(world: World, starts: dict[SharePlace, int], epoch: int = 3) -> Any:
    return asyncio.run(world.persister.initialize(GROUP, epoch, starts))


# ---------------------------------------------------------------------- whom is asked
def test_what_is_coordinated_here_and_elsewhere_is_asked_there() -> None:
    world = World(HERE, THERE)
    here, there = world.place_of(HERE), world.place_of(THERE)
    world.peer = {there.partition: {"error_code": ErrorCode.FENCED_STATE_EPOCH}}
    assert initialize(world, {here: 5, there: 6}) == {here: NONE, there: ErrorCode.FENCED_STATE_EPOCH}
    state = world.shard(here).state.states[here]
    assert (state.state_epoch, state.start_offset) == (3, 5)
    ((key, request),) = world.requests
    ((row),) = request.topics
    assert (key, request.group_id, row.topic_id) == (ApiKey.INITIALIZE_SHARE_GROUP_STATE, GROUP, T)
    assert [(each.partition, each.state_epoch, each.start_offset) for each in row.partitions] == [
        (there.partition, 3, 6)
    ]


@pytest.mark.parametrize("what", ["initialize", "delete", "summarize"])
def test_partitions_for_one_broker_are_asked_about_together(what: str) -> None:
    world = World(THERE)
    world.peer = {number: {} for number in range(2)}
    places = [SharePlace(GROUP, topic_id, number) for number in range(2) for topic_id in (T, U)]
    if what == "initialize":
        outcomes = initialize(world, dict.fromkeys(places, 7))
    else:
        outcomes = asyncio.run(getattr(world.persister, what)(GROUP, places))
    assert set(outcomes) == set(places)
    ((_, request),) = world.requests
    assert request.group_id == GROUP
    assert [(row.topic_id, [each.partition for each in row.partitions]) for row in request.topics] == [
        (T, [0, 1]),
        (U, [0, 1]),
    ]


def test_without_a_coordinator_it_is_unavailable() -> None:
    world = World(THERE)
    world.set_topics(topic("t", HERE), topic(SHARE_TOPIC, -1))
    assert initialize(world, {PLACE: 5}) == {PLACE: UNAVAILABLE}
    assert world.requests == []


@pytest.mark.parametrize("exists", [True, False])
def test_the_topic_is_made_when_it_is_first_needed(monkeypatch: pytest.MonkeyPatch, *, exists: bool) -> None:
    world = World(*([HERE] if exists else []))
    made: list[int] = []

    async def create() -> None:
        made.append(1)

    monkeypatch.setattr(world.coordinator.topic, "create", create)
    assert initialize(world, {PLACE: 5}) == {PLACE: NONE if exists else UNAVAILABLE}
    assert made == ([] if exists else [1])


def test_a_coordinator_that_is_not_ready_says_so() -> None:
    world = World(HERE)
    world.partitions.clear()
    assert initialize(world, {PLACE: 5}) == {PLACE: NOT_COORDINATOR}


def test_what_gets_no_answer_is_unavailable_or_a_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(THERE)
    assert initialize(world, {PLACE: 5}) == {PLACE: NETWORK}, "the answer has no such partition"
    world.peer_error = PeerError("no answer", was_sent=True)
    assert initialize(world, {PLACE: 5}) == {PLACE: NETWORK}
    assert [level for level, _, _ in world.lines] == ["warning"]
    world = World(HERE)

    def decide(*_: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.fail()
        return pending

    monkeypatch.setattr(world.coordinator, "decide", decide)
    assert initialize(world, {PLACE: 5}) == {PLACE: UNAVAILABLE}


# ---------------------------------------------------------------------- what is asked
def test_states_end() -> None:
    world = World(HERE)
    world.initialize()
    assert asyncio.run(world.persister.delete(GROUP, [PLACE])) == {PLACE: NONE}
    assert world.shard().state.count == 0


def test_how_far_a_partition_is_or_why_that_is_not_known() -> None:
    world = World(HERE)
    world.initialize()
    other = SharePlace(GROUP, bytes(16), 0)
    found = asyncio.run(world.persister.summarize(GROUP, [PLACE, other]))
    assert (found[PLACE].error_code, found[PLACE].start_offset) == (NONE, 5)
    assert found[other].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.partitions.clear()
    found = asyncio.run(world.persister.summarize(GROUP, [PLACE]))
    assert found == {PLACE: SummaryStatePartitionResult(partition=0, error_code=NOT_COORDINATOR)}


def test_another_broker_says_how_far_a_partition_is_whatever_leader_it_has() -> None:
    world = World(THERE)
    world.peer = {0: {"start_offset": 77}}
    found = asyncio.run(world.persister.summarize(GROUP, [PLACE]))
    assert found[PLACE].start_offset == 77
    ((_, request),) = world.requests
    assert request.topics[0].partitions[0].leader_epoch == -1, "who asks leads nothing, and fences no leader"


WRITE = StateWrite(number=1, start_offset=5, complete_count=2, batches=(StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1),))


def test_what_is_written_is_read() -> None:
    world = World(HERE)
    world.initialize()
    assert asyncio.run(world.persister.write(PLACE, 4, 1, WRITE)) == NONE
    assert asyncio.run(world.persister.read(PLACE, 4)) == StoredState(
        state_epoch=1, start_offset=5, batches=WRITE.batches
    )
    assert asyncio.run(world.persister.write(PLACE, 3, 1, WRITE)) == ErrorCode.FENCED_LEADER_EPOCH
    assert asyncio.run(world.persister.read(PLACE, 3)) == ErrorCode.FENCED_LEADER_EPOCH
    world.partitions.clear()
    assert asyncio.run(world.persister.read(PLACE, 4)) == NOT_COORDINATOR


def test_another_broker_is_asked_to_write_and_to_read() -> None:
    world = World(THERE)
    batch = ShareStateBatch(first_offset=5, last_offset=9, delivery_state=2, delivery_count=1)
    world.peer = {0: {}}
    assert asyncio.run(world.persister.write(PLACE, 4, 1, WRITE)) == NONE
    (written,) = world.requests[0][1].topics[0].partitions
    assert (written.partition, written.state_epoch, written.leader_epoch) == (0, 1, 4)
    assert (written.start_offset, written.delivery_complete_count, written.state_batches) == (5, 2, [batch])
    world.peer = {0: {"state_epoch": 1, "start_offset": 5, "state_batches": [batch]}}
    assert asyncio.run(world.persister.read(PLACE, 4)) == StoredState(
        state_epoch=1, start_offset=5, batches=WRITE.batches
    )
    (asked,) = world.requests[1][1].topics[0].partitions
    assert (asked.partition, asked.leader_epoch) == (0, 4)
    batch.delivery_state = 99
    assert asyncio.run(world.persister.read(PLACE, 4)) == NOT_COORDINATOR, "a state of a later version"

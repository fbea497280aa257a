"""Markers go to a partition's current leader until it has them, or are left to the next coordinator."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.transactions.marker_sender import RETRY_S, TIMEOUT_MS, MarkerSender, PendingMarkers
from lowtide.broker.coordinator.transactions.marker_writer import TransactionEnd
from lowtide.broker.network.peer_client import PeerError
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from lowtide.protocol.types import TopicPartition

HERE, THERE, GONE = 1, 2, 3
"""Brokers: this one, another one, and one that isn't registered."""

KEYS = [TopicPartition("t", number) for number in range(4)]
NONE = ErrorCode.NONE


def topic(*leaders: int, name: str = "t") -> TopicImage:
    partitions = tuple(PartitionImage((leader,), (leader,), (1,), leader, 0, 0, 1) for leader in leaders)
    return TopicImage(name, name.encode() * 16, partitions, {}, 1)


class World:
    """A sender whose loop, tasks and peers the test steps."""

    def __init__(self, *leaders: int) -> None:
        self.soon: list[tuple[Any, tuple[Any, ...]]] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.written: list[tuple[TransactionEnd, list[TopicPartition], int]] = []
        self.answers: dict[TopicPartition, ErrorCode] = {}
        """What partitions that are led here answer, and no others."""
        self.requests: list[WriteTxnMarkersRequest] = []
        self.peer: dict[TopicPartition, ErrorCode] | PeerError = {}
        self.on_request: Any = None
        brokers = {each: BrokerImage(each, 1, ()) for each in (HERE, THERE)}
        self.metadata = SimpleNamespace(
            broker_id=HERE, image=MetadataImage(brokers=brokers, topics={"t": topic(*leaders)})
        )
        broker: Any = SimpleNamespace(
            metadata=self.metadata,
            log=SimpleNamespace(warning=lambda *_args, **_values: None),
            tasks=SimpleNamespace(spawn=lambda task, name: self.tasks.append(task)),
        )
        loop: Any = SimpleNamespace(
            call_soon=lambda function, *given: self.soon.append((function, given)),
            call_later=lambda delay_s, function, *given: self.later.append((delay_s, function, given)),
        )
        peers: Any = SimpleNamespace(client_of=lambda _node, _purpose: self)
        writer: Any = SimpleNamespace(write=self.write)
        self.sender = MarkerSender(broker, writer, peers, loop)

    def write(self, end: TransactionEnd, keys: list[TopicPartition], done: Any, *, timeout_ms: int) -> None:
        self.written.append((end, list(keys), timeout_ms))
        for key in keys:
            if key in self.answers:
                done(key, self.answers[key])

    async def request(
        self, _api: Any, _version: int, request: WriteTxnMarkersRequest, _timeout_ms: int
    ) -> WriteTxnMarkersResponse:
        self.requests.append(request)
        if self.on_request is not None:
            self.on_request()
        if isinstance(self.peer, PeerError):
            raise self.peer
        rows = [
            WritableTxnMarkerPartitionResult(partition_index=key.partition, error_code=error)
            for key, error in self.peer.items()
        ]
        markers = [
            WritableTxnMarkerResult(
                producer_id=marker.producer_id, topics=[WritableTxnMarkerTopicResult(name="t", partitions=rows)]
            )
            for marker in request.markers
        ]
        return WriteTxnMarkersResponse(markers=markers)

    def run(self) -> None:
        """All that is due now."""
        while self.soon or self.tasks:
            if self.soon:
                function, given = self.soon.pop(0)
                function(*given)
            else:
                with pytest.raises(StopIteration):
                    self.tasks.pop(0).send(None)

    def retry(self) -> None:
        """As if the time of all that waits had come."""
        due, self.later = self.later, []
        for delay_s, function, given in due:
            assert delay_s == RETRY_S
            function(*given)
        self.run()


class Told:
    """A transaction that ended, and what became of that."""

    def __init__(
        self,
        world: World,
        keys: list[TopicPartition],
        *,
        is_commit: bool = True,
        producer_id: int = 7,
        bumped: bool = True,
    ) -> None:
        self.ours, self.count = True, 0
        end = TransactionEnd(producer_id, 5, is_commit, 9, bumped)
        self.sending = PendingMarkers(end, set(keys), lambda: self.ours, self.on_sent)
        world.sender.send(self.sending)

    def on_sent(self) -> None:
        self.count += 1


def test_partitions_that_are_led_here_are_written_and_the_end_is_told_once() -> None:
    world = World(HERE, HERE)
    world.answers = dict.fromkeys(KEYS[:2], NONE)
    told = Told(world, KEYS[:2])
    assert not world.written, "not within the call"
    world.run()
    assert world.written == [(told.sending.end, KEYS[:2], TIMEOUT_MS)]
    assert (told.count, told.sending.left) == (1, set())
    world.sender._on_answer(told.sending, KEYS[0], NONE)
    assert told.count == 1, "an answer that comes again"


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("bumped", [True, False])
def test_the_others_are_sent_to_their_leaders(is_commit: bool, bumped: bool) -> None:
    world = World(THERE, HERE, THERE)
    world.peer = {KEYS[0]: NONE, KEYS[2]: NONE}
    told = Told(world, KEYS[:3], is_commit=is_commit, bumped=bumped)
    world.run()
    assert [keys for _, keys, _ in world.written] == [[KEYS[1]]]
    ((marker,),) = [request.markers for request in world.requests]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 5, 9)
    assert (marker.transaction_result, marker.transaction_version) == (is_commit, 2 if bumped else 0)
    assert [(each.name, list(each.partition_indexes)) for each in marker.topics] == [("t", [0, 2])]
    assert (told.count, told.sending.left, world.later) == (0, {KEYS[1]}, [])


def test_what_fails_is_tried_again_with_the_leader_of_then() -> None:
    world = World(THERE, THERE)
    world.peer = {KEYS[0]: NONE, KEYS[1]: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    told = Told(world, KEYS[:2])
    world.run()
    assert told.sending.left == {KEYS[1]}
    world.metadata.image = MetadataImage(brokers=world.metadata.image.brokers, topics={"t": topic(THERE, HERE)})
    world.answers = {KEYS[1]: NONE}
    world.retry()
    assert [keys for _, keys, _ in world.written] == [[KEYS[1]]]
    assert told.count == 1


@pytest.mark.parametrize("peer", [PeerError("no connection", was_sent=False), {}])
def test_what_is_not_answered_is_tried_again(peer: Any) -> None:
    world = World(THERE)
    world.peer = peer
    told = Told(world, KEYS[:1])
    world.run()
    assert (told.count, len(world.later)) == (0, 1)
    world.peer = {KEYS[0]: NONE}
    world.retry()
    assert (told.count, len(world.requests)) == (1, 2)


@pytest.mark.parametrize("leader", [NO_LEADER, GONE])
def test_a_partition_without_a_leader_is_tried_again(leader: int) -> None:
    world = World(leader, HERE)
    world.answers = {KEYS[1]: NONE}
    told = Told(world, KEYS[:2])
    world.run()
    assert (told.sending.left, len(world.later), world.requests) == ({KEYS[0]}, 1, [])


def test_partitions_that_are_gone_need_no_marker() -> None:
    world = World(HERE)
    world.answers = {KEYS[0]: NONE}
    told = Told(world, [TopicPartition("deleted", 0), *KEYS[:2]])
    world.run()
    assert told.count == 1
    assert [keys for _, keys, _ in world.written] == [[KEYS[0]]]


def test_a_later_epoch_has_the_end_already() -> None:
    world = World(HERE)
    world.answers = {KEYS[0]: ErrorCode.INVALID_PRODUCER_EPOCH}
    told = Told(world, KEYS[:1])
    world.run()
    assert (told.count, world.later) == (1, [])


def test_one_who_is_fenced_gives_up() -> None:
    """Another broker is the coordinator, and continues."""
    world = World(HERE, HERE)
    world.answers = {KEYS[0]: ErrorCode.TRANSACTION_COORDINATOR_FENCED, KEYS[1]: NONE}
    told = Told(world, KEYS[:2])
    world.run()
    assert (told.count, told.sending.given_up, world.later) == (0, True, [])
    world.sender._try(told.sending, KEYS[:2])
    assert len(world.written) == 1


@pytest.mark.parametrize("reason", ["closed", "not ours"])
def test_nothing_is_sent_by_who_is_no_coordinator_any_more(reason: str) -> None:
    world = World(HERE)
    told = Told(world, KEYS[:1])
    if reason == "closed":
        world.sender.close()
    else:
        told.ours = False
    world.run()
    assert (world.written, told.sending.given_up) == ([], True)
    told.ours = True
    world.sender._on_answer(told.sending, KEYS[0], NONE)
    assert told.count == 0


def test_what_comes_while_a_broker_is_asked_goes_in_one_request() -> None:
    world = World(THERE)
    world.peer = {KEYS[0]: NONE}
    first = Told(world, KEYS[:1])
    others: list[Told] = []

    def more() -> None:
        if not others:
            others.extend(Told(world, KEYS[:1], producer_id=number) for number in (8, 9, 10))
            others[1].ours = False
            for other in others:
                world.sender._send_soon(THERE, other.sending, KEYS[:1])
            world.soon.clear()

    world.on_request = more
    world.run()
    assert [[marker.producer_id for marker in request.markers] for request in world.requests] == [[7], [8, 10]]
    assert [told.count for told in (first, *others)] == [1, 1, 0, 1]
    world.on_request = None
    again = Told(world, KEYS[:1], producer_id=11)
    world.run()
    assert again.count == 1, "the next one begins with a new task"


def test_a_broker_that_is_gone_is_not_asked() -> None:
    world = World(THERE)
    told = Told(world, KEYS[:1])
    function, given = world.soon.pop()
    function(*given)
    world.metadata.image = MetadataImage(brokers={}, topics=world.metadata.image.topics)
    world.run()
    assert (world.requests, told.count, len(world.later)) == ([], 0, 1)


def test_a_broker_is_not_asked_for_nothing() -> None:
    """Another coordinator has taken over before the task began."""
    world = World(THERE)
    told = Told(world, KEYS[:1])
    function, given = world.soon.pop()
    function(*given)
    told.ours = False
    world.run()
    assert (world.requests, world.later) == ([], [])


def test_a_stop_ends_what_waits_for_a_broker() -> None:
    world = World(THERE)
    Told(world, KEYS[:1])
    function, given = world.soon.pop()
    function(*given)
    world.sender.close()
    world.run()
    assert world.requests == []

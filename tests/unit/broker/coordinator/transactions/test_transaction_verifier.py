"""Questions to the coordinator of a transaction: who is asked, what goes out together, and what is asked again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.broker.coordinator.transactions.transaction_verifier import TransactionVerifier, committer_error
from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.produce.transaction_question import AskedTransaction, Question
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from lowtide.protocol.types import TopicPartition

from . import coordinator_world
from .coordinator_world import DATA, HERE, NAME, NONE, THERE

KEYS = [TopicPartition("t", number) for number in range(3)]
OTHER = TopicPartition("u", 0)
KEY = TopicPartition(TRANSACTION_TOPIC, 0)
ABORTABLE, CONCURRENT, NETWORK = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
)


class World(coordinator_world.World):
    """A verifier over such a coordinator; the coordinator on another broker gives the answers in `peer`."""

    def __init__(self, *leaders: int, **settings: str) -> None:
        super().__init__(*leaders, **settings)
        self.peer: dict[TopicPartition, ErrorCode] | ErrorCode | PeerError = {}
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.on_request: Any = None
        self.answered: list[tuple[TopicPartition, ErrorCode]] = []
        self.renewed: list[TopicPartition] = []
        self.verifier = TransactionVerifier(self.coordinator, self.peers(), self.loop)

    def peers(self) -> Any:
        return SimpleNamespace(client_of=self.client_of)

    def client_of(self, node: Any, purpose: str) -> Any:
        assert (node.broker_id, purpose) == (THERE, "verification")
        return SimpleNamespace(request=self.request)

    async def request(
        self, _api: Any, version: int, request: AddPartitionsToTxnRequest, _timeout_ms: int
    ) -> AddPartitionsToTxnResponse:
        assert version == 5
        self.requests.append(request)
        if self.on_request is not None:
            self.on_request()
        if isinstance(self.peer, PeerError):
            raise self.peer
        if isinstance(self.peer, ErrorCode):
            return AddPartitionsToTxnResponse(error_code=self.peer)
        topics = [
            AddPartitionsToTxnTopicResult(
                name=key.topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=key.partition, partition_error_code=error)
                ],
            )
            for key, error in self.peer.items()
        ]
        return AddPartitionsToTxnResponse(
            results_by_transaction=[AddPartitionsToTxnResult(transactional_id=NAME, topic_results=topics)]
        )

    def question(
        self, key: TopicPartition = DATA, *, adds: bool = False, producer: tuple[int, int] = (100, 0)
    ) -> Question:
        return Question(AskedTransaction(NAME, *producer, adds), key)

    def ask(self, *keys: TopicPartition, **fields: Any) -> None:
        for key in keys:

            def renew(key: TopicPartition = key) -> None:
                self.renewed.append(key)

            def answered(error: ErrorCode, key: TopicPartition = key) -> None:
                self.answered.append((key, error))

            self.verifier.ask(self.question(key, **fields), renew, answered)

    @property
    def asked(self) -> list[list[tuple[str, list[int]]]]:
        """The partitions of each request to the other broker."""
        return [
            [(topic.name, list(topic.partitions)) for topic in request.transactions[0].topics]
            for request in self.requests
        ]

    def pass_time(self, milliseconds: int) -> None:
        """All timers that are set are due."""
        self.now_ms += milliseconds
        due, self.later = self.later, []
        for delay_s, function, given in due:
            assert delay_s == milliseconds / 1000
            function(*given)
        self.run()

    def begin_verified(self) -> None:
        """A producer with an open transaction; the timers of transactions are others'."""
        self.begin()
        self.later.clear()


# ---------------------------------------------------------------------- at once
def test_a_coordinator_that_is_here_answers_at_once_whether_a_partition_was_added() -> None:
    world = World(HERE)
    world.begin_verified()
    assert world.verifier.answer_now(world.question()) == NONE
    assert world.verifier.answer_now(world.question(KEYS[1])) == ABORTABLE
    assert world.verifier.answer_now(world.question(producer=(100, 1))) == ErrorCode.PRODUCER_FENCED


def test_what_has_to_be_kept_or_asked_elsewhere_is_not_answered_at_once() -> None:
    world = World(HERE)
    world.begin_verified()
    assert world.verifier.answer_now(world.question(adds=True)) is None
    assert World(THERE).verifier.answer_now(world.question()) is None
    assert World().verifier.answer_now(world.question()) is None, "there is no coordinator yet"


def test_a_coordinator_that_is_not_ready_says_so_at_once() -> None:
    world = World(HERE)
    world.partitions[KEY] = world.led(KEY, end_offset=5)
    assert world.verifier.answer_now(world.question()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    del world.partitions[KEY]
    assert world.verifier.answer_now(world.question()) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("wanted", [True, False])
def test_the_configuration_says_whether_it_is_wanted(*, wanted: bool) -> None:
    assert World(HERE, transaction_partition_verification_enable=str(wanted).lower()).verifier.is_wanted == wanted


# ---------------------------------------------------------------------- later, here
def test_a_coordinator_that_is_here_answers_later_what_is_asked_later() -> None:
    world = World(HERE)
    world.begin_verified()
    world.ask(DATA, KEYS[1])
    assert not world.answered, "not within the call"
    world.run()
    assert world.answered == [(DATA, NONE), (KEYS[1], ABORTABLE)]
    assert world.shard().state.transactions[NAME].partitions == {DATA}


def test_partitions_are_added_together() -> None:
    world = World(HERE)
    world.begin_verified()
    kept = len(world.appended)
    world.ask(KEYS[2], KEYS[1], adds=True)
    world.run()
    assert world.answered == [(KEYS[2], NONE), (KEYS[1], NONE)]
    assert world.shard().state.transactions[NAME].partitions == {DATA, KEYS[1], KEYS[2]}
    assert len(world.appended) == kept + 1


def test_a_producer_with_an_epoch_for_each_transaction_begins_one_by_what_it_adds() -> None:
    world = World(HERE)
    world.begin(partitions=())
    world.ask(DATA, adds=True)
    world.run()
    assert world.answered == [(DATA, NONE)]
    assert world.shard().state.transactions[NAME].client_version == 2


@pytest.mark.parametrize("adds", [True, False])
def test_a_coordinator_that_is_not_ready_says_so_later(*, adds: bool) -> None:
    world = World(HERE)
    del world.partitions[KEY]
    world.ask(DATA, adds=adds)
    world.run()
    assert world.answered == [(DATA, ErrorCode.NOT_COORDINATOR)]


def test_an_answer_without_an_outcome_is_an_unavailable_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(HERE)
    world.begin_verified()
    monkeypatch.setattr(world.coordinator, "decide", lambda *_: SimpleNamespace(listen=lambda callback: callback(None)))
    world.ask(DATA, adds=True)
    world.run()
    assert world.answered == [(DATA, ErrorCode.COORDINATOR_NOT_AVAILABLE)]


@pytest.mark.parametrize("adds", [True, False])
def test_without_a_coordinator_it_is_unavailable(*, adds: bool) -> None:
    world = World()
    world.ask(*KEYS, adds=adds)
    world.run()
    assert world.answered == [(key, ErrorCode.COORDINATOR_NOT_AVAILABLE) for key in KEYS]


# ---------------------------------------------------------------------- elsewhere
@pytest.mark.parametrize("adds", [True, False])
def test_another_broker_is_asked_about_a_transaction_as_a_whole(*, adds: bool) -> None:
    world = World(THERE)
    world.peer = {KEYS[0]: NONE, KEYS[2]: ABORTABLE, OTHER: ErrorCode.INVALID_PRODUCER_EPOCH}
    world.ask(KEYS[2], OTHER, KEYS[0], KEYS[2], adds=adds, producer=(7, 5))
    world.run()
    assert world.asked == [[("t", [0, 2]), ("u", [0])]]
    ((row,),) = [request.transactions for request in world.requests]
    assert (row.transactional_id, row.producer_id, row.producer_epoch, row.verify_only) == (NAME, 7, 5, not adds)
    assert world.answered == [
        (KEYS[2], ABORTABLE),
        (OTHER, ErrorCode.INVALID_PRODUCER_EPOCH),
        (KEYS[0], NONE),
        (KEYS[2], ABORTABLE),
    ]


def test_questions_wait_for_the_answer_to_those_before_them() -> None:
    """The coordinator refuses a second change of a transaction while it makes the first."""
    world = World(THERE)
    world.peer = dict.fromkeys(KEYS, NONE)

    def ask_more() -> None:
        world.on_request = None
        world.ask(KEYS[1])
        world.ask(KEYS[2])
        assert world.answered == []

    world.on_request = ask_more
    world.ask(KEYS[0])
    world.run()
    assert world.asked == [[("t", [0])], [("t", [1, 2])]]
    assert world.answered == [(key, NONE) for key in KEYS]


def test_questions_of_others_do_not_wait_and_nothing_is_kept_of_what_was_asked() -> None:
    world = World(THERE)
    world.peer = {KEYS[0]: NONE}
    for fields in ({}, {"adds": True}, {"producer": (100, 1)}):
        world.ask(KEYS[0], **fields)
    assert len(world.soon) == 3
    world.run()
    assert len(world.requests) == len(world.answered) == 3
    assert not world.verifier._gathering
    world.ask(KEYS[0])
    world.run()
    assert len(world.requests) == 4


@pytest.mark.parametrize(
    ("peer", "answered"),
    [
        (PeerError("no answer", was_sent=True), NETWORK),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({KEYS[1]: NONE}, NETWORK),
    ],
    ids=["no answer", "an error as a whole", "an answer without the partition"],
)
def test_each_question_is_answered_whatever_the_other_broker_answers(peer: Any, answered: ErrorCode) -> None:
    world = World(THERE)
    world.peer = peer
    world.ask(KEYS[0])
    world.run()
    assert world.answered == [(KEYS[0], answered)]


# ---------------------------------------------------------------------- again
def test_a_partition_is_added_again_while_the_transaction_before_is_ending() -> None:
    world = World(THERE)
    world.peer = {KEYS[0]: CONCURRENT, KEYS[1]: NONE}
    world.ask(KEYS[0], KEYS[1], adds=True)
    world.run()
    assert (world.answered, world.renewed) == ([(KEYS[1], NONE)], [])
    world.pass_time(20)
    assert (world.asked[1:], world.renewed) == ([[("t", [0])]], [KEYS[0]]), (
        "a guard that the marker took away is set again"
    )
    world.peer = {KEYS[0]: NONE}
    world.pass_time(20)
    assert world.answered[1:] == [(KEYS[0], NONE)]
    assert world.renewed == [KEYS[0]] * 2


def test_it_is_not_added_again_for_ever() -> None:
    world = World(THERE)
    world.peer = {KEYS[0]: CONCURRENT}
    world.ask(KEYS[0], adds=True)
    world.run()
    for _ in range(5):
        assert not world.answered
        world.pass_time(20)
    assert world.answered == [(KEYS[0], CONCURRENT)]
    assert not world.later
    assert len(world.requests) == 6, "each in a tenth of a second"


def test_a_verification_is_not_repeated() -> None:
    """Its producer has added the partition before, when the transaction before had ended."""
    world = World(THERE)
    world.peer = {KEYS[0]: CONCURRENT}
    world.ask(KEYS[0])
    world.run()
    assert (world.answered, world.later) == ([(KEYS[0], CONCURRENT)], [])


# ---------------------------------------------------------------------- what a commit of offsets is answered
@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (NONE, NONE),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (NETWORK, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (CONCURRENT, CONCURRENT),
    ],
)
def test_a_commit_of_offsets_gets_errors_that_its_client_knows(error: ErrorCode, answered: ErrorCode) -> None:
    assert committer_error(error, knows_abortable=False) == answered
    assert committer_error(error, knows_abortable=True) == (error if error == ABORTABLE else answered)

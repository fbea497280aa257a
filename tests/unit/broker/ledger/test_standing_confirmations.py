"""A leader asks each replica after a standing erasure, until it has confirmed, or is none any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.ledger import standing_confirmations
from lowtide.broker.ledger.erasure_ledger import LedgerPartition
from lowtide.broker.ledger.standing_confirmations import PURPOSE, StandingConfirmations
from lowtide.broker.network.peer_client import PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import CleanReplica, LedgerEntry
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import (
    ErasedPartition,
    ErasedTopic,
    EraseRecordsRequest,
    EraseRecordsResponse,
)
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_loop import run_simulation
from tests.unit.admin.ledger_rows import ERASURE, TOPIC_ID, clean, named

ID, OTHER_ID = b"e" * 16, b"o" * 16
NONE = ErrorCode.NONE
Row = tuple[int, bytes, int, int]
"""Broker, erasure, partition and end of the erasures of a row that was sent."""


def place(number: int = 0, topic_id: bytes = TOPIC_ID) -> LedgerPartition:
    return LedgerPartition(topic_id, number)


def key(number: int = 0) -> TopicPartition:
    return TopicPartition("flights", number)


def goal(erasures_end: int) -> EraseGoal:
    """The log start is that of `named` and `clean`."""
    return EraseGoal(100, erasures_end)


class AskedBrokers:
    """Brokers 1 and 2 with the partitions 0 and 1 of a topic. `codes`: what a broker answers, for each row."""

    def __init__(self) -> None:
        self.replicas = {0: (1, 2), 1: (1, 2)}
        self.brokers: dict[int, Any] = {number: SimpleNamespace(broker_id=number) for number in (1, 2)}
        self.codes: dict[int, ErrorCode | Exception] = {}
        self.sent: list[Row] = []
        self.requests: list[EraseRecordsRequest] = []
        self.rounds = 0
        self.on_request: Callable[[], None] = lambda: None
        self.peers: Any = SimpleNamespace(client_of=self.client_of)
        self.running: list[asyncio.Task[None]] = []
        session = SimpleNamespace(image=SimpleNamespace(brokers=self.brokers, topic_by_id=self.topic_by_id))
        self.parts: Any = SimpleNamespace(session=session, peers=self.peers, tasks=SimpleNamespace(spawn=self.spawn))
        self.confirmations = StandingConfirmations(self.parts)

    def topic_by_id(self, topic_id: bytes) -> Any:
        partitions = [SimpleNamespace(replicas=each) for each in self.replicas.values()]
        return SimpleNamespace(partitions=partitions) if topic_id == TOPIC_ID and partitions else None

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        assert name
        self.rounds += 1
        self.running.append(asyncio.ensure_future(work))

    def client_of(self, broker: Any, purpose: str) -> Any:
        assert purpose == PURPOSE

        async def request(api: ApiKey, version: int, request: EraseRecordsRequest, timeout_ms: int) -> Any:
            assert (api, version, timeout_ms) == (ApiKey.ERASE_RECORDS, 1, request.timeout_ms)
            self.requests.append(request)
            await asyncio.sleep(1)
            self.on_request()
            code = self.codes.get(broker.broker_id, NONE)
            topics = []
            for topic in request.topics:
                assert (topic.name, topic.topic_id) == ("flights", TOPIC_ID)
                assert {each.offset for each in topic.partitions} == {100}
                self.sent += [
                    (broker.broker_id, bytes(request.erasure_id), each.partition_index, each.erasures_end)
                    for each in topic.partitions
                ]
                if isinstance(code, ErrorCode):
                    rows = [
                        ErasedPartition(partition_index=each.partition_index, error_code=code)
                        for each in topic.partitions
                    ]
                    topics.append(ErasedTopic(name=topic.name, partitions=rows))
            if isinstance(code, Exception):
                raise code
            unknown = ErasedTopic(name="unknown", partitions=[ErasedPartition(partition_index=0, error_code=NONE)])
            return EraseRecordsResponse(error_code=NONE, topics=[*topics, unknown])

        return SimpleNamespace(request=request)

    async def round(self) -> list[Row]:
        """Returns what one round sends, sorted."""
        self.sent.clear()
        self.confirmations.begin_round()
        await asyncio.gather(*self.running)
        self.running.clear()
        return sorted(self.sent)


def with_brokers(test: Callable[[AskedBrokers], Coroutine[Any, Any, None]]) -> None:
    async def main(_loop: asyncio.AbstractEventLoop) -> None:
        await test(AskedBrokers())

    run_simulation(main, 1)


def test_each_replica_is_asked_until_it_has_confirmed() -> None:
    """Protects the ledger: it says of each replica that its files are clean."""

    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(), place(), goal(40))
        brokers.codes = {1: PeerError("lost", was_sent=True), 2: ErrorCode.REQUEST_TIMED_OUT}
        both = [(1, ID, 0, 40), (2, ID, 0, 40)]
        assert await brokers.round() == both
        brokers.codes[2] = NONE
        assert await brokers.round() == both
        assert await brokers.round() == both[:1]
        brokers.codes[1] = NONE
        assert await brokers.round() == both[:1]
        rounds = brokers.rounds
        assert await brokers.round() == []
        assert brokers.rounds == rounds, "nothing is left to ask for"

    with_brokers(test)


def test_partitions_of_an_erasure_go_in_one_request() -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(0), place(0), goal(40))
        brokers.confirmations.add(ID, key(1), place(1), goal(41))
        brokers.confirmations.add(OTHER_ID, key(1), place(1), goal(42))
        assert await brokers.round() == sorted(
            (broker, *row) for broker in (1, 2) for row in [(ID, 0, 40), (ID, 1, 41), (OTHER_ID, 1, 42)]
        )
        assert len(brokers.requests) == 4
        assert await brokers.round() == []

    with_brokers(test)


def test_rounds_do_not_overlap() -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(), place(), goal(40))
        brokers.confirmations.begin_round()
        brokers.confirmations.begin_round()
        assert brokers.rounds == 1
        assert await brokers.round() == [(1, ID, 0, 40), (2, ID, 0, 40)]

    with_brokers(test)


def test_a_later_erasure_is_asked_for_again() -> None:
    """A replica that has confirmed the earlier one may not have carried out the later one yet."""

    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(), place(), goal(40))

        def erase_again() -> None:
            brokers.on_request = lambda: None
            brokers.confirmations.add(ID, key(), place(), goal(50))

        brokers.on_request = erase_again
        assert await brokers.round() == [(1, ID, 0, 40), (2, ID, 0, 50)]
        assert await brokers.round() == [(1, ID, 0, 50)]
        assert await brokers.round() == []

    with_brokers(test)


def leave(brokers: AskedBrokers) -> None:
    brokers.replicas[0] = (2,)


def delete(brokers: AskedBrokers) -> None:
    brokers.replicas.clear()


@pytest.mark.parametrize(("change", "left"), [(leave, [(2, ID, 0, 40)]), (delete, [])])
def test_what_is_no_replica_any_more_is_not_asked(change: Callable[[AskedBrokers], None], left: list[Row]) -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(), place(), goal(40))
        change(brokers)
        brokers.codes = {2: ErrorCode.REQUEST_TIMED_OUT}
        assert await brokers.round() == left
        assert len(brokers.requests) == len(left)
        brokers.replicas = {0: (1, 2)}
        assert await brokers.round() == left, "it is forgotten"

    with_brokers(test)


def test_a_partition_that_left_does_not_stop_the_others() -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(0), place(0), goal(40))
        brokers.confirmations.add(ID, key(1), place(1), goal(41))
        brokers.replicas[0] = ()
        assert await brokers.round() == [(1, ID, 1, 41), (2, ID, 1, 41)]
        brokers.confirmations.add(ID, key(2), place(2), goal(41))
        assert await brokers.round() == [], "there is no such partition"

    with_brokers(test)


def test_a_broker_that_is_away_is_asked_when_it_is_back() -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.add(ID, key(), place(), goal(40))
        away = brokers.brokers.pop(1)
        assert await brokers.round() == [(2, ID, 0, 40)]
        brokers.brokers[1] = away
        assert await brokers.round() == [(1, ID, 0, 40)]

    with_brokers(test)


def test_a_broker_without_a_cluster_asks_nobody() -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.parts.peers = None
        brokers.confirmations.add(ID, key(), place(), goal(40))
        assert await brokers.round() == []

    with_brokers(test)


def test_the_oldest_are_forgotten_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects memory while a broker is away for long. What is erased again counts as new."""
    monkeypatch.setattr(standing_confirmations, "UNCONFIRMED_MAX", 4)

    async def test(brokers: AskedBrokers) -> None:
        brokers.codes = {1: ErrorCode.REQUEST_TIMED_OUT, 2: ErrorCode.REQUEST_TIMED_OUT}
        brokers.confirmations.add(ID, key(0), place(0), goal(40))
        brokers.confirmations.add(ID, key(1), place(1), goal(41))
        assert len(await brokers.round()) == 4
        brokers.confirmations.add(ID, key(0), place(0), goal(42))
        brokers.confirmations.add(OTHER_ID, key(0), place(0), goal(43))
        expected = [(broker, *row) for broker in (1, 2) for row in [(ID, 0, 42), (OTHER_ID, 0, 43)]]
        assert await brokers.round() == expected

    with_brokers(test)


def clean_to(offset: int) -> LedgerEntry:
    """Broker 1 has confirmed that nothing is left below `offset`."""
    entry = clean(1)
    assert isinstance(entry.value, CleanReplica)
    entry.value.offset = offset
    return entry


@pytest.mark.parametrize(
    ("entries", "asked"),
    [
        ([named(), clean(1)], [(2, 901)]),
        ([named(), clean(1, erasures_end=900), clean(2)], [(1, 901)]),
        ([named(), clean_to(99), clean(2)], [(1, 901)]),
        ([named(), clean_to(100), clean(2)], []),
        ([named(), named(searched_to=950, erasures_end=960), clean(1), clean(2, erasures_end=960)], [(1, 960)]),
        ([named(searched_to=950, erasures_end=960), named(), clean(1, erasures_end=960)], [(2, 960)]),
        ([named(erasures_end=1)], [(1, 1), (2, 1)]),
        ([named(erasures_end=-1)], []),
        ([clean(1)], []),
        ([named(), LedgerEntry(clean(1).key, None), LedgerEntry(named(searched_to=9).key, None)], [(1, 901), (2, 901)]),
        (
            [named(), LedgerEntry(msgspec.structs.replace(clean(1).key, erasure_id=ID), clean(1).value), clean(2)],
            [(1, 901)],
        ),
    ],
)
def test_a_new_leader_asks_for_what_the_ledger_lacks(entries: list[LedgerEntry], asked: list[tuple[int, int]]) -> None:
    async def test(brokers: AskedBrokers) -> None:
        brokers.confirmations.resume(key(), place(), entries)
        assert await brokers.round() == [(broker, ERASURE.bytes, 0, end) for broker, end in asked]

    with_brokers(test)

"""The ledger is written and read on its leader, wherever that is: whole, in parts, and until a deadline."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.ledger import erasure_ledger
from lowtide.broker.ledger.erasure_ledger import (
    LEDGER_PURPOSE,
    STEPS,
    TIMEOUT_MS,
    ErasureLedger,
    LedgerPartition,
)
from lowtide.broker.network.peer_client import PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.erasure_ledger_records import LedgerEntry, StandingKey, StandingSearch, decode_entry, encode_entry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.read_erasures import ErasuresPartition, ReadErasuresRequest
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest, WriteErasuresResponse
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.errors import DamagedSegmentError, StorageError
from tests.unit.storage.compaction.compacting import DIRECTORY, CompactedLog

NONE, LATER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
TOPIC_ID = b"t" * 16
SEGMENT = f"{DIRECTORY}/{0:020}.log"
LATER_TYPE = b"\x00\x63later"


def entry(number: int = 0, *, searched_to: int = 5, padding: int = 0) -> LedgerEntry:
    key = StandingKey(topic_id=TOPIC_ID, partition=number)
    return LedgerEntry(
        key, StandingSearch(topic="t" + "." * padding, searched_to=searched_to, leader_epoch=1, searched_ms=1)
    )


def place(number: int = 0) -> LedgerPartition:
    return LedgerPartition(TOPIC_ID, number)


class StubTopic:
    """The ledger's topic; `leader` is a broker id, or why there is none."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self.options = options
        self.exists = True
        self.created = 0
        self.leader: int | ErrorCode = 1

    async def create(self) -> None:
        self.created += 1
        self.exists = True

    def coordinator_of(self, _key: str) -> Any:
        if isinstance(self.leader, ErrorCode) or not self.exists:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return SimpleNamespace(broker_id=self.leader)


class BrokerOfLedger:
    """Broker 1 with its part of the ledger: what is appended, committed and asked from others is kept."""

    def __init__(self, loop: SimulatedLoop, *, is_alone: bool = False, given: tuple[str, ...] = ()) -> None:
        self.loop = loop
        self.world = CompactedLog(MemoryFileSystem())
        self.partition: Any = SimpleNamespace(is_leader=True, has_enough_in_sync=True, log=self.world.log)
        self.found: Any = self.partition
        self.appended: list[Any] = []
        self.append_error: ErrorCode | None = None
        self.waits: list[tuple[int, int]] = []
        self.failed: list[Exception] = []
        self.asked: list[tuple[Any, str, ApiKey, Any, int]] = []
        self.answers: list[Any] = []
        values = {"offsets.topic.replication.factor": 3, "offsets.topic.segment.bytes": 1 << 20}
        broker: Any = SimpleNamespace(
            config=SimpleNamespace(values=values, given=given),
            replicas=self,
            clock=SimpleNamespace(wall_ms=lambda: 1_000),
            metadata=SimpleNamespace(broker_id=1),
            random=random.Random(1),
            log=SimpleNamespace(warning=lambda *_, **__: None),
        )
        peers: Any = SimpleNamespace(client_of=self.client_of)
        administrator: Any = None
        self.ledger = ErasureLedger(broker, administrator, peers, is_alone=is_alone)
        self.topic: Any = self.ledger._topic

    # as ReplicaManager
    def find(self, topic: str, number: int) -> Any:
        assert (topic, number) == (LEDGER_TOPIC, 0)
        return self.found

    def append(self, _partition: Any, batch: Any, _wall_ms: int) -> Any:
        if self.append_error is not None:
            return self.append_error
        self.appended.append(batch)
        return SimpleNamespace(last_offset=10 * len(self.appended))

    def when_committed(
        self, _partition: Any, offset: int, callback: Callable[[ErrorCode], None], *, timeout_ms: int
    ) -> None:
        self.waits.append((offset, timeout_ms))
        callback(NONE)

    def on_read_failed(self, partition: Any, error: Exception) -> None:
        assert partition is self.partition
        self.failed.append(error)

    # as PeerClients
    def client_of(self, broker: Any, purpose: str) -> Any:
        async def request(key: ApiKey, version: int, request: Any, timeout_ms: int) -> Any:
            assert version == 0
            self.asked.append((broker.broker_id, purpose, key, request, timeout_ms))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, Exception):
                raise answer
            return WriteErasuresResponse(error_code=answer)

        return SimpleNamespace(request=request)

    def put(self, *entries: LedgerEntry) -> None:
        """Appends a committed batch to the log of the ledger."""
        self.world.append(*(encode_entry(each) for each in entries))


@pytest.fixture(autouse=True)
def _stub_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_ledger, "OffsetsTopic", StubTopic)


def in_ledger(test: Callable[[BrokerOfLedger], Awaitable[None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await test(BrokerOfLedger(loop))

    run_simulation(main, 1)


def write(*entries: LedgerEntry, timeout_ms: int = 1_000) -> WriteErasuresRequest:
    rows = [LedgerRecord(key=key, value=value) for key, value in map(encode_entry, entries)]
    return WriteErasuresRequest(records=rows, timeout_ms=timeout_ms)


FACTOR = "offsets.topic.replication.factor"


@pytest.mark.parametrize(
    ("is_alone", "given", "expected"),
    [(True, (), False), (True, (FACTOR,), True), (False, (), True), (False, (FACTOR,), True)],
)
def test_only_a_broker_that_stays_alone_keeps_fewer_copies(
    *, is_alone: bool, given: tuple[str, ...], expected: bool
) -> None:
    """Protects the ledger of a cluster, of which at first only one broker runs, from having one copy for ever."""

    async def main(loop: SimulatedLoop) -> None:
        broker = BrokerOfLedger(loop, is_alone=is_alone, given=given)
        assert (broker.topic.options["factor_is_given"], broker.topic.options["name"]) == (expected, LEDGER_TOPIC)

    run_simulation(main, 1)


def test_an_answer_waits_until_all_batches_are_committed() -> None:
    """Protects evidence: what is not committed can be lost with a leader."""

    async def test(broker: BrokerOfLedger) -> None:
        broker.partition.log = SimpleNamespace(config=SimpleNamespace(max_message_bytes=300))
        assert (await broker.ledger.append(write(*(entry(number) for number in range(9))))).error_code == NONE
        count = len(broker.appended)
        assert count > 1
        assert broker.waits == [(10 * count + 1, 1_000)]

    in_ledger(test)


@pytest.mark.parametrize(("given_ms", "waited_ms"), [(-5, 0), (700, 700), (60_000, TIMEOUT_MS)])
def test_an_append_waits_for_a_bounded_time(given_ms: int, waited_ms: int) -> None:
    async def test(broker: BrokerOfLedger) -> None:
        await broker.ledger.append(write(entry(), timeout_ms=given_ms))
        assert [timeout_ms for _, timeout_ms in broker.waits] == [waited_ms]

    in_ledger(test)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"found": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"is_leader": False}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"has_enough_in_sync": False}, ErrorCode.NOT_ENOUGH_REPLICAS),
        (
            {"log": SimpleNamespace(config=SimpleNamespace(max_message_bytes=100))},
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        ({"append_error": ErrorCode.KAFKA_STORAGE_ERROR}, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_an_append_that_is_refused_is_no_success(change: dict[str, Any], code: ErrorCode) -> None:
    async def test(broker: BrokerOfLedger) -> None:
        for name, value in change.items():
            setattr(broker if hasattr(broker, name) else broker.partition, name, value)
        assert (await broker.ledger.append(write(entry(), entry(1)))).error_code == code
        assert (broker.appended, broker.waits) == ([], [])

    in_ledger(test)


def test_many_entries_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_ledger, "REQUEST_BYTES", 1_000)

    async def test(broker: BrokerOfLedger) -> None:
        broker.topic.leader, broker.answers = 2, [NONE]
        assert await broker.ledger.record([], broker.loop.time() + 9) == NONE
        assert broker.asked == []
        entries = [entry(number, padding=333) for number in range(5)]
        assert await broker.ledger.record(entries, broker.loop.time() + 9) == NONE
        sent = [each for _, _, _, request, _ in broker.asked for each in request.records]
        assert [decode_entry(each.key, each.value) for each in sent] == entries
        assert [len(request.records) for _, _, _, request, _ in broker.asked] == [2, 2, 1]
        too_large = entry(padding=1_000)
        assert await broker.ledger.record([too_large], broker.loop.time() + 9) == ErrorCode.MESSAGE_TOO_LARGE
        broker.answers = [ErrorCode.MESSAGE_TOO_LARGE, NONE]
        assert await broker.ledger.record(entries, broker.loop.time() + 9) == ErrorCode.MESSAGE_TOO_LARGE
        assert len(broker.asked) == 4, "nothing is sent after an error"

    in_ledger(test)


def test_the_leader_is_asked_again_until_it_answers() -> None:
    """Protects an erasure from an election of the ledger's leader, and its client from waiting without end."""

    async def test(broker: BrokerOfLedger) -> None:
        broker.topic.leader, broker.topic.exists = 2, False
        broker.answers = [LATER, PeerError("lost", was_sent=True), ErrorCode.COORDINATOR_NOT_AVAILABLE, NONE]
        began_s = broker.loop.time()
        assert await broker.ledger.record([entry()], began_s + 3) == NONE
        assert broker.topic.created == 1
        assert {each[:3] for each in broker.asked} == {(2, LEDGER_PURPOSE, ApiKey.WRITE_ERASURES)}
        assert len(broker.asked) == 4
        assert broker.asked[0][4] == 3_000
        assert 0 < broker.loop.time() - began_s < 2
        assert [timeout_ms for *_, timeout_ms in broker.asked] == sorted(
            {each[4] for each in broker.asked}, reverse=True
        )
        broker.answers = [NONE]
        await broker.ledger.record([entry()], broker.loop.time() + 60)
        assert broker.asked[-1][4] == TIMEOUT_MS, "of one attempt"

    in_ledger(test)


@pytest.mark.parametrize("trouble", [LATER, PeerError("lost", was_sent=False)])
def test_a_ledger_without_a_leader_is_given_up_at_the_deadline(trouble: Any) -> None:
    async def test(broker: BrokerOfLedger) -> None:
        broker.topic.leader, broker.answers = 2, [trouble]
        deadline = broker.loop.time() + 3.25
        assert await broker.ledger.record([entry()], deadline) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert broker.loop.time() == pytest.approx(deadline, abs=0.001)
        asked = len(broker.asked)
        assert asked > 5
        broker.topic.leader = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await broker.ledger.read([place()], broker.loop.time() + 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert len(broker.asked) == asked

    in_ledger(test)


def test_an_error_that_stays_is_answered_at_once() -> None:
    async def test(broker: BrokerOfLedger) -> None:
        began_s = broker.loop.time()
        broker.append_error = ErrorCode.MESSAGE_TOO_LARGE
        assert await broker.ledger.record([entry()], began_s + 9) == ErrorCode.MESSAGE_TOO_LARGE
        assert broker.loop.time() == began_s

    in_ledger(test)


def read_request(*numbers: int, offset: int = 0) -> ReadErasuresRequest:
    rows = [ErasuresPartition(topic_id=TOPIC_ID, partition_index=number) for number in numbers]
    return ReadErasuresRequest(offset=offset, partitions=rows)


def test_the_last_record_of_each_key_is_read() -> None:
    """Records of later versions, markers, and those about other partitions say nothing."""

    async def test(broker: BrokerOfLedger) -> None:
        broker.put(entry(0), entry(1), entry(2))
        marker = build_batch([(1, b"\x00\x00\x00\x00", b"", ())], base_offset=3, leader_epoch=0, is_control=True)
        broker.world.append_batch(marker)
        broker.world.append((LATER_TYPE, b"x"), encode_entry(entry(1, searched_to=8)))
        found = await broker.ledger.read([place(0), place(1)], broker.loop.time() + 1)
        assert found == [entry(0), entry(1, searched_to=8)]
        assert await broker.ledger.read([], broker.loop.time() + 1) == []

    in_ledger(test)


def test_a_page_has_a_bounded_part_of_the_committed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_ledger, "STEP_BYTES", 1)  # One batch.

    async def test(broker: BrokerOfLedger) -> None:
        for number in range(STEPS + 2):
            broker.put(entry(number))
        every, began_s = tuple(range(STEPS + 2)), broker.loop.time()
        first = await broker.ledger.page(read_request(*every))
        assert (len(first.records), first.next_offset) == (STEPS, STEPS)
        second = await broker.ledger.page(read_request(*every, offset=STEPS))
        assert (len(second.records), second.next_offset) == (2, UNKNOWN_OFFSET)
        found = await broker.ledger.read([place(number) for number in every], broker.loop.time() + 1)
        assert found == [entry(number) for number in every]
        assert broker.loop.time() == began_s
        broker.world.log.move_log_start(STEPS)
        late = await broker.ledger.page(read_request(*every, offset=1))
        assert (len(late.records), late.next_offset) == (2, UNKNOWN_OFFSET)
        found = await broker.ledger.read([place(number) for number in every], broker.loop.time() + 1)
        assert found == [entry(STEPS), entry(STEPS + 1)]

    in_ledger(test)


def test_a_broken_disk_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from taking an unreadable ledger for an empty one."""
    error = DamagedSegmentError("path", "damaged")

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(erasure_ledger, "_read", fail)

    async def test(broker: BrokerOfLedger) -> None:
        broker.put(entry())
        assert (await broker.ledger.page(read_request(0))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.failed == [error]
        broker.partition.is_leader = False
        assert (await broker.ledger.page(read_request(0))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await broker.ledger.page(read_request(0))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_ledger(test)


def test_a_damaged_byte_of_the_ledger_leaves_out_no_record() -> None:
    """Protects consumers from records that were erased: without the ledger's record nobody erases them again.

    The CRC doesn't contain the first offset of a batch; a change that shows nowhere else does no harm.
    """

    async def test(broker: BrokerOfLedger) -> None:
        for number in range(3):
            broker.put(entry(number))
        expected = [entry(number) for number in range(3)]
        content = broker.world.filesystem.read_bytes(SEGMENT)
        found: set[bool] = set()
        for position in range(len(content)):
            for mask in (0x01, 0x40, 0x80):
                damaged = bytearray(content)
                damaged[position] ^= mask
                broker.world.filesystem.write_bytes(SEGMENT, bytes(damaged))
                read = await broker.ledger.read([place(number) for number in range(3)], broker.loop.time() + 0.01)
                assert read in (expected, ErrorCode.COORDINATOR_NOT_AVAILABLE), (position, mask)
                found.add(read == expected)
        assert found == {True, False}

    in_ledger(test)


@pytest.mark.parametrize("kept", [0, 1, 70, 200])
def test_a_ledger_that_was_cut_is_not_a_shorter_one(kept: int) -> None:
    async def test(broker: BrokerOfLedger) -> None:
        for number in range(3):
            broker.put(entry(number))
        content = broker.world.filesystem.read_bytes(SEGMENT)
        broker.world.filesystem.write_bytes(SEGMENT, content[:kept])
        read = await broker.ledger.read([place(number) for number in range(3)], broker.loop.time() + 0.01)
        assert read == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert broker.failed

    in_ledger(test)


def test_a_disk_that_fails_a_read_is_answered() -> None:
    """Protects the log directory from staying online, and a task from failing every second."""

    async def test(broker: BrokerOfLedger) -> None:
        broker.put(entry())
        broker.world.filesystem.fail_next("read", errno.EIO, path_contains=".log")
        assert (await broker.ledger.page(read_request(0))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        [error] = broker.failed
        assert isinstance(error, StorageError)
        assert not isinstance(error, DamagedSegmentError)

    in_ledger(test)


def test_a_record_of_an_unknown_version_is_an_error() -> None:
    """Protects an older broker from leaving out what a newer one has written."""

    async def test(broker: BrokerOfLedger) -> None:
        key, value = encode_entry(entry())
        assert value is not None
        broker.world.append((key, b"\x00\x63" + value[2:]))
        assert await broker.ledger.read([place()], broker.loop.time() + 1) == ErrorCode.INVALID_RECORD

    in_ledger(test)


def test_a_key_that_is_cut_is_damage() -> None:
    async def test(broker: BrokerOfLedger) -> None:
        broker.world.append((encode_entry(entry())[0][:9], b"x"))
        assert (await broker.ledger.page(read_request(0))).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    in_ledger(test)

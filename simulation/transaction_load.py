"""Transactional producers of a simulated cluster, and readers of committed records.

A producer adds partitions, sends and ends transactions as clients do, by the old protocol or with an epoch per
transaction (KIP-890), and retries unanswered requests. Some leave a transaction open: the coordinator aborts it. Two
with one transactional id fence each other. `transaction_history` judges what they see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from lowtide.protocol.batch_building import UnplacedRecord, build_batch
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.fetch import PartitionData as FetchedPartition
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.coordinated import COMES_AGAIN, TRANSACTION, Coordinated
from lowtide.simulation.history import HistoryError
from lowtide.simulation.loaded_partition import MOVED, UNDECIDED, rows
from lowtide.simulation.transaction_history import Attempt, Identity, TransactionHistory

TRANSACTION_TIMEOUT_MS: Final = 2500

TRANSACTION_SETTINGS: Final = {"transaction.state.log.num.partitions": "2"}

_ANSWER_MS: Final = 3000
"""The request timeout, shorter than brokers may take, which wait for each other for up to half a minute."""

_HASTE: Final = 0.4
AT_ONCE_SHARE: Final = 0.4
"""The share of transactions (with an epoch each) that begin while the last markers are written."""

_ADD_VERSION: Final = 3
_FETCH_VERSION: Final = 12
_FETCH_BYTES: Final = 1 << 20
_DECOMPRESSED_BYTES_MAX: Final = 1 << 24

FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
"""Errors of a fenced or aborted transaction."""

_OVER: Final = FENCED | {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
"""Errors that end a transaction."""

_AGAIN: Final = COMES_AGAIN | UNDECIDED | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS}


class TransactionLoad:
    """The shared state of a topic's transactional clients."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        counts: Counter[str],
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.history = TransactionHistory()
        self.sources: dict[int, str] = {}
        """The partitions that transformers read, with their topic."""
        self.counts = counts
        self._make_client = make_client
        self.random = random

    def records(self, partition: int, values: list[bytes]) -> list[UnplacedRecord]:
        return rows(values)

    def make_producers(self, transactional_ids: tuple[str, ...]) -> list[TransactionalProducer]:
        """Creates producers; those with the same id fence each other."""
        return [
            TransactionalProducer(
                self, transactional_id, self._make_client(f"{transactional_id} {index}"), self._source()
            )
            for index, transactional_id in enumerate(transactional_ids)
        ]

    def make_readers(self) -> list[CommittedReader]:
        return [self.make_reader(number) for number in range(self.partitions)]

    def make_reader(self, number: int) -> CommittedReader:
        """Creates a reader of committed records."""
        return CommittedReader(self, number, self._make_client(f"committed {number}"), self._source())

    def make_client(self, name: str) -> ClusterClient:
        return self._make_client(name)

    def _source(self) -> Random:
        return Random(self.random.getrandbits(64))


class TransactionalProducer(Coordinated):
    """A transactional producer. Each step is one request, repeated until it is answered."""

    def __init__(self, load: TransactionLoad, transactional_id: str, client: ClusterClient, random: Random) -> None:
        super().__init__(transactional_id, TRANSACTION, client, random, load.counts)
        self.load = load
        self._bumps = random.random() < 0.5  # noqa: PLR2004 - each transaction has an epoch of its own
        self._identity: Identity | None = None
        self._expected: Identity | None = None
        """Its own producer id and epoch, for the next epoch."""
        self._sequences: dict[int, int] = {}
        self._attempt: Attempt | None = None
        self._to_add: list[int] = []
        self._to_send: list[tuple[int, list[bytes]]] = []
        self._commits = False
        self._rests_s = 0.0

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Pauses little between the requests of a transaction."""
        await super().run(until=until, pause_s=pause_s * _HASTE)

    async def step(self) -> None:
        if self._identity is None:
            await self._begin_producer()
        elif self._attempt is None:
            self._begin_transaction()
        elif self._to_add:
            await self._add(self._identity, self._to_add[0])
        elif self._to_send:
            await self._send(self._identity, self._attempt, *self._to_send[0])
        else:
            await self._end(self._identity, self._attempt)

    async def _begin_producer(self) -> None:
        await asyncio.sleep(self._rests_s)  # Or those of one id would do nothing but fence each other.
        newest, expected = self.load.history.newest(self.key), self._expected
        request = InitProducerIdRequest(
            transactional_id=self.key,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            producer_id=NO_PRODUCER_ID if expected is None else expected[0],
            producer_epoch=NO_PRODUCER_EPOCH if expected is None else expected[1],
        )
        answer = await self.ask(request, 4, timeout_ms=_ANSWER_MS)
        if self._is_done("InitProducerId", answer.error_code):
            if expected is not None:
                self.load.history.on_success("InitProducerId", self.key, expected, newest)
            self._identity = identity = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
            self.client.note(f"is producer {identity}")
            self.load.history.on_identity(self.key, identity)
        elif answer.error_code in FENCED:
            self._expected = None

    def _begin_transaction(self) -> None:
        load = self.load
        self._attempt = load.history.begin(self.key)
        count = self.random.choice((1, 2, 2))
        partitions = self.random.sample(range(load.partitions), min(count, load.partitions))
        self._to_add = [] if self._bumps else list(partitions)
        self._to_send = []
        for _ in range(self.random.choice((1, 1, 2))):
            for partition in partitions:
                padding = b"x" * self.random.randint(0, 60)
                self._to_send.append(
                    (partition, load.history.new_values(self._attempt, partition, self.random.randint(1, 2), padding))
                )
        self._commits = self.random.random() < 0.75  # noqa: PLR2004
        if self.random.random() < 0.1:  # noqa: PLR2004 - it commits in the middle of what it wanted to send
            for _, values in self._to_send[1:]:
                for value in values:
                    del self._attempt.values[value]
            del self._to_send[1:]

    async def _add(self, identity: Identity, partition: int) -> None:
        newest = self.load.history.newest(self.key)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.key,
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.load.topic, partitions=[partition])],
        )
        answer = await self.ask(request, _ADD_VERSION, timeout_ms=_ANSWER_MS)
        if self._is_done(
            "AddPartitionsToTxn", answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        ):
            self.load.history.on_success("AddPartitionsToTxn", self.key, identity, newest)
            self._to_add.pop(0)

    async def _send(self, identity: Identity, attempt: Attempt, partition: int, values: list[bytes]) -> None:
        load = self.load
        sequence, newest = self._sequences.get(partition, 0), load.history.newest(self.key)
        batch = build_batch(
            load.records(partition, values),
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        rows_of_topic = [PartitionProduceData(index=partition, records=batch)]
        request = ProduceRequest(
            transactional_id=self.key,
            acks=-1,
            timeout_ms=_ANSWER_MS // 2,
            topic_data=[TopicProduceData(name=load.topic, partition_data=rows_of_topic)],
        )
        try:
            leader = await self.client.leader(load.topic, partition)
            version = 12 if self._bumps else 9
            answer = await self.client.ask(leader, request, version, timeout_ms=_ANSWER_MS, must_answer=False)
        except OSError:
            self.client.forget(load.topic, partition)
            raise
        row = answer.responses[0].partition_responses[0]
        code = ErrorCode.NONE if row.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else row.error_code
        if code in MOVED:
            self.client.forget(load.topic, partition)
        if code in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID} and load.history.is_void:
            self._give_up()
        elif self._is_done("Produce", code):
            self.client.note(
                f"sent {len(values)} at {row.base_offset} of {load.topic}-{partition} in {attempt}, producer {identity}"
            )
            load.history.on_success("Produce", self.key, identity, newest)
            load.history.on_acknowledged(attempt, row.base_offset, values)
            self._sequences[partition] = sequence + len(values)
            self._to_send.pop(0)
            if self.random.random() < 0.05:  # noqa: PLR2004
                await self._abandon()

    async def _end(self, identity: Identity, attempt: Attempt) -> None:
        history, newest = self.load.history, self.load.history.newest(self.key)
        attempt.commits_sent += self._commits
        is_first = attempt.commits_sent <= 1
        request = EndTxnRequest(
            transactional_id=self.key, producer_id=identity[0], producer_epoch=identity[1], committed=self._commits
        )
        answer = await self.ask(request, 5 if self._bumps else 3, timeout_ms=_ANSWER_MS)
        if answer.error_code in _OVER and self._commits and is_first:
            attempt.is_refused = True
        if not self._is_done("EndTxn", answer.error_code):
            return
        self.client.note(f"{attempt} is {'committed' if self._commits else 'aborted'}, producer {identity}")
        history.on_success("EndTxn", self.key, identity, newest)
        attempt.is_committed, attempt.is_refused = self._commits, not self._commits
        self.counts["committed" if self._commits else "aborted"] += 1
        self._attempt = None
        if self._bumps:
            self._identity = identity = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
            history.on_identity(self.key, identity)
            if self.random.random() < AT_ONCE_SHARE:
                self._begin_transaction()
                await self.step()

    async def _abandon(self) -> None:
        """Leaves the transaction open, for longer than its timeout, or for the next producer."""
        self.client.note(f"leaves {self._attempt} open")
        self.counts["abandoned"] += 1
        if self.random.random() < 0.5:  # noqa: PLR2004 - then it continues, and finds out
            self._give_up()
            self._expected = None
        await asyncio.sleep(self.random.choice((0.2, 1.5 * TRANSACTION_TIMEOUT_MS / 1000)))

    def _is_done(self, what: str, code: int) -> bool:
        """Returns whether a request was executed; ends a transaction that cannot continue. Errors: HistoryError.

        T8: a write within a transaction is never invalid in its state. An end may be, if the coordinator ended it
        before.
        """
        if code == ErrorCode.INVALID_TXN_STATE and what != "EndTxn" and not self.load.history.is_void:
            raise HistoryError(f"T8: {what} of {self._attempt}, producer {self._identity}, answered INVALID_TXN_STATE")
        if code in _OVER:
            self.client.note(f"{what} of {self._attempt}: {ErrorCode(code).name}")
            self._rests_s = self.random.choice((0.0, 1.0)) if code in FENCED else 0.0
            self._give_up()
        return self.has(what, code, _OVER | _AGAIN)

    def _give_up(self) -> None:
        """Starts again with the next epoch, knowing its previous one (KIP-360) or not."""
        self._expected = self._identity if self.random.random() < 0.5 else None  # noqa: PLR2004
        self._identity = self._attempt = None
        self._to_add, self._to_send = [], []


class CommittedReader(Coordinated):
    """Reads a partition repeatedly from its beginning: committed records, and sometimes all."""

    def __init__(self, load: TransactionLoad, partition: int, client: ClusterClient, random: Random) -> None:
        super().__init__(f"{load.topic}-{partition}", TRANSACTION, client, random, load.counts)
        self.load = load
        self.partition = partition
        self.position = 0

    async def step(self) -> None:
        is_committed = self.random.random() < 0.8  # noqa: PLR2004
        if self.random.random() < 0.1:  # noqa: PLR2004
            self.position = self.random.randint(0, self.position)
        await self.read(is_committed=is_committed)

    async def read(self, *, is_committed: bool) -> tuple[FetchedPartition, dict[Offset, bytes]] | None:
        """Continues reading. Returns None for an expected error. Errors: OSError, HistoryError."""
        load, history, position = self.load, self.load.history, self.position
        row = FetchPartition(partition=self.partition, fetch_offset=position, partition_max_bytes=_FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            isolation_level=int(is_committed),
            topics=[FetchTopic(topic=load.topic, partitions=[row])],
        )
        try:
            leader = await self.client.leader(load.topic, self.partition)
            response = await self.client.ask(leader, request, _FETCH_VERSION, timeout_ms=0)
        except OSError:
            self.client.forget(load.topic, self.partition)
            raise
        answer: FetchedPartition = response.responses[0].partitions[0]
        if answer.error_code in MOVED:
            self.client.forget(load.topic, self.partition)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and history.is_void:
            self.position = 0
        elif self.has("Fetch", answer.error_code, UNDECIDED):
            records = self._read(answer, position, is_committed=is_committed)
            history.on_read(self.partition, records, is_committed=is_committed)
            return answer, records
        return None

    def _read(self, answer: FetchedPartition, position: Offset, *, is_committed: bool) -> dict[Offset, bytes]:
        """Decodes a response as clients do. Errors: HistoryError for a gap, or records above the last stable offset."""
        content = bytes(cast("bytes", answer.records or b""))
        ended = sorted((row.first_offset, row.producer_id) for row in answer.aborted_transactions or ())
        aborted: set[int] = set()
        found: dict[Offset, bytes] = {}
        for place, header in iterate_batches(content):
            if header.base_offset > position or not check_crc(content, place, header):
                raise HistoryError(
                    f"R3: {self.key} has a batch at {header.base_offset} for a reader from {position}, or it is damaged"
                )
            if is_committed and header.base_offset >= answer.last_stable_offset:
                raise HistoryError(
                    f"T3: {self.key} shows offset {header.base_offset} as stable, which ends at "
                    f"{answer.last_stable_offset}"
                )
            position = header.next_offset
            while is_committed and ended and ended[0][0] <= header.last_offset:
                aborted.add(ended.pop(0)[1])
            batch = content[place : place + header.size_bytes]
            if header.is_control:
                control = read_control_record(batch, max_bytes=_DECOMPRESSED_BYTES_MAX)
                if control is not None and control.type == ControlRecordType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in iterate_records(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
                    if record.offset >= self.position:
                        found[record.offset] = record.value or b""
        self.position = position
        return found

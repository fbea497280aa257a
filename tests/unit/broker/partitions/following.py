"""One real broker on virtual time that follows. The test plays the leader, and chooses each response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from struct import Struct
from typing import Any, NamedTuple

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import frame, read_request_header, response_header
from lowtide.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.messages.offset_for_leader_epoch import EpochEndOffset as EpochEnd
from lowtide.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult
from lowtide.runtime.network import listen
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.log.log import Log

from .leading import PORT, Leading

LEADER = 2
SESSION = 77
_LENGTH = Struct(">i")
_PREFIX = Struct(">qii")


def records(base_offset: int, count: int = 1, *, epoch: int = 0, value: bytes = b"record") -> bytes:
    """One batch as a leader has stored it."""
    batch = bytearray(build_batch([(1, None, b"%s %d" % (value, number), ()) for number in range(count)]))
    _PREFIX.pack_into(batch, 0, base_offset, len(batch) - 12, epoch)
    return bytes(batch)


def row(**values: Any) -> PartitionData:
    """A response about partition 0: nothing new, unless values are given."""
    diverging = values.pop("diverging", None)
    fields: dict[str, Any] = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 0,
        "log_start_offset": 0,
        "records": b"",
    }
    fields |= values
    if diverging is not None:
        fields["diverging_epoch"] = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    return PartitionData(**fields)


class Asked(NamedTuple):
    """A request that the leader received, and when."""

    key: int
    version: int
    message: Any
    at_s: float
    connection: LeaderConnection
    correlation_id: int

    @property
    def rows(self) -> list[FetchPartition]:
        assert isinstance(self.message, FetchRequest)
        return [each for topic in self.message.topics for each in topic.partitions]


class LeaderConnection(asyncio.Protocol):
    def __init__(self, world: Following) -> None:
        self.world = world
        self.received = bytearray()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4:
            (size,) = _LENGTH.unpack_from(self.received)
            if len(self.received) < 4 + size:
                return
            request = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            key, version, correlation_id, _client_id, position = read_request_header(request, 0, size)
            codec = codec_for(API[ApiKey(key)].request, version)
            message = codec.decode(memoryview(request), position, size)
            self.world.asked.put_nowait(Asked(key, version, message, self.world.loop.time(), self, correlation_id))


class Following(Leading):
    """Broker 1, which follows broker 2."""

    asked: asyncio.Queue[Asked]

    async def begin(self, *partitions: tuple[int, ...], configs: dict[str, str] | None = None, **settings: str) -> Log:
        """A topic that broker 2 leads; no request has been sent yet. Returns the log of its partition 0."""
        self.asked = asyncio.Queue()
        node = self.loop.start_node(f"broker-{LEADER}")
        await node.spawn(listen(lambda: LeaderConnection(self), "", PORT))
        await self.start(LEADER, **settings)
        await self.create_topic("t", *(partitions or ((LEADER, 1),)), **(configs or {}))
        return self.partition().log

    @property
    def own_epoch(self) -> int:
        """The broker epoch of broker 1's registration."""
        assert self.broker is not None
        assert self.broker._session is not None
        return self.broker._session.broker_epoch

    def set_commit_ms(self, milliseconds: float) -> None:
        """Set how long a commit takes from now on."""
        for committer in self.replicas.log_manager._committers.values():
            committer.delay_range_ms = (milliseconds, milliseconds)

    async def next(self, key: ApiKey = ApiKey.FETCH, within_s: float = 5.0) -> Asked:
        """The next request, which must have the expected API key."""
        async with asyncio.timeout(within_s):
            asked = await self.asked.get()
        assert asked.key == key, asked
        return asked

    async def nothing_asked(self, for_s: float) -> None:
        """No request arrives for this time."""
        await asyncio.sleep(for_s)
        assert self.asked.empty(), self.asked.get_nowait()

    def send(self, asked: Asked, message: Any) -> None:
        header = response_header(asked.correlation_id, response_header_is_flexible(asked.key, asked.version))
        codec = codec_for(API[ApiKey(asked.key)].response, asked.version)
        asked.connection.transport.write(frame(header, codec.encode(message)))

    def answer(self, asked: Asked, *rows: PartitionData, session: int = SESSION, error: int = 0) -> None:
        """Answer a Fetch about topic t."""
        topic_id = self.replicas.image.topics["t"].topic_id
        topics = [FetchableTopicResponse(topic="t", topic_id=topic_id, partitions=list(rows))] if rows else []
        self.send(asked, FetchResponse(error_code=error, session_id=0 if error else session, responses=topics))

    async def fetched(self, *rows: PartitionData, session: int = SESSION) -> Asked:
        """Answer the next Fetch, and wait until the response is processed. Returns the request."""
        asked = await self.next()
        self.answer(asked, *rows, session=session)
        await asyncio.sleep(0.004)
        return asked

    def answer_offset(self, asked: Asked, offset: int, error: int = 0) -> None:
        """Answer a ListOffsets."""
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=error, timestamp=-1, offset=offset)
        self.send(asked, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])]))

    def answer_epoch(self, asked: Asked, epoch: int, end_offset: int, error: int = 0) -> None:
        """Answer an OffsetForLeaderEpoch."""
        found = EpochEnd(error_code=error, partition=0, leader_epoch=epoch, end_offset=end_offset)
        self.send(
            asked, OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[found])])
        )

    async def filled(self, *epochs: int, high_watermark: int = 0) -> Log:
        """As `begin`, with one record of each of these leader epochs in the log; the last one is the current epoch."""
        log = await self.begin()
        if epochs[-1] > 0:
            asked = await self.next()
            await self.change(leader_epoch=epochs[-1])
            self.answer(asked, row())
        batches = b"".join(records(offset, epoch=epoch) for offset, epoch in enumerate(epochs))
        await self.fetched(row(records=batches, high_watermark=high_watermark))
        assert log.log_end_offset == len(epochs)
        return log

    async def asks_for_an_epoch(self) -> tuple[Log, Asked]:
        """As an old broker with three records, one of them committed, whose leader is elected again.

        Returns the log, and the question.
        """
        log = await self.begin(inter_broker_protocol_version="0.10.2")
        await self.fetched(row(records=records(0) + records(1) + records(2), high_watermark=1))
        waiting = await self.next()
        await self.change(leader_epoch=1)
        self.answer(waiting, row(high_watermark=1))
        return log, await self.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)

    async def asks_again(self, end: int, *, start: int = 0) -> Asked:
        """An old broker truncated to `end`, asks where its epoch ends now, and where the leader's log starts.

        Returns the request after that.
        """
        self.answer_epoch(await self.next(ApiKey.OFFSET_FOR_LEADER_EPOCH), 0, end)
        self.answer_offset(await self.next(ApiKey.LIST_OFFSETS), 9)
        self.answer_offset(await self.next(ApiKey.LIST_OFFSETS), start)
        return await self.next()

    async def new_leader_epoch(self, leader_epoch: int) -> Asked:
        """The leader is elected again. Returns the first Fetch of the new leader epoch."""
        waiting = await self.next()
        await self.change(leader_epoch=leader_epoch)
        self.answer(waiting)
        return await self.next()


def simulate(test: Callable[[Following], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run `test` on virtual time."""

    async def main(loop: SimulatedLoop) -> None:
        await test(Following(loop))
        assert loop.failures() == []

    run_simulation(main, seed)


def offsets(log: Log) -> tuple[int, int, int]:
    """Start, high watermark, end."""
    return log.log_start_offset, log.high_watermark, log.log_end_offset


def epochs_in(log: Log) -> list[int]:
    """The leader epoch of each batch in the log's files."""
    return [header.partition_leader_epoch for segment in log.segments for _, header in segment.batches(0)]


NONE = ErrorCode.NONE

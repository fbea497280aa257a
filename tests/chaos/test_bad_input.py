"""Input of hostile or broken clients: each has a defined answer, and affects no other client.

One real broker for the whole file. After each test: the broker answers, has reported no fault, and an honest client's
history holds.

`SEED=n` selects other requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.simulation.client import WireClient
from lowtide.simulation.load import FETCH_VERSION, PRODUCE_VERSION, PartitionLoad

from .fuzz_topics import FUZZ_TOPICS, HONEST_TOPIC, METADATA_VERSION, make_fuzz_topics, remove_topics, topic_ids
from .probing import ANSWER_LIMIT_S, Prober
from .random_requests import SERVED, RandomRequests
from .serving import ServeProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

ODD_REQUESTS = 4_000
SEED = os.environ.get("SEED", "7")
CONNECTIONS = 8
REFRESH_EACH = 50
"""After this many random requests on a connection, topics that they may have deleted are re-created."""

MEMORY_LIMIT_BYTES = 64 << 20
STARVED_LIMIT_S = 120.0
HONEST_PAUSE_S = 0.002
API_VERSIONS_VERSION = 3


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request_frame(request: Any, version: int, *, key: ApiKey) -> bytes:
    return framed(request_header(key, version, 1, "chaos") + codec_for(type(request), version).encode(request))


API_VERSIONS = request_frame(
    ApiVersionsRequest(client_software_name="chaos", client_software_version="1"),
    API_VERSIONS_VERSION,
    key=ApiKey.API_VERSIONS,
)
METADATA = request_frame(MetadataRequest(topics=None), METADATA_VERSION, key=ApiKey.METADATA)


class Honest:
    """A well-behaved client that other clients must not affect."""

    def __init__(self, broker: ServeProcess) -> None:
        self.broker = broker
        self.load = PartitionLoad(HONEST_TOPIC, 0, broker.connect, random.Random(SEED))

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Produces, reads and deletes meanwhile; reads everything back at the end."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.load.run(until=stop, pause_s=HONEST_PAUSE_S))
        before = self.load.counts["produced"]
        try:
            yield
            async with asyncio.timeout(ANSWER_LIMIT_S):
                while self.load.counts["produced"] == before and not task.done():
                    await asyncio.sleep(0.01)
        finally:
            stop.set()
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await task
        assert self.load.counts["lost"] == 0, "a connection of the honest client was lost"
        await self.read_back()

    async def read_back(self) -> None:
        """Reads and checks everything."""
        client = await self.broker.connect()
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await self.load.read_all(client)
        client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServeProcess]:
    async with ServeProcess(tmp_path_factory.mktemp("bad-input") / "log", "connections.max.idle.ms=1000000") as process:
        yield process
        assert await process.terminate() == 0, process.lines[-5:] + process.noise
        assert not process.faults


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def honest(broker: ServeProcess) -> Honest:
    client = await broker.connect()
    honest = Honest(broker)
    await honest.load.create_topic(client, {"internal.segment.bytes": "20000"})
    client.close()
    return honest


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def unharmed(broker: ServeProcess, honest: Honest) -> AsyncIterator[None]:
    """In each test the honest client works all the time, and the broker reports no internal error."""
    known = len(broker.faults)
    async with honest.at_work():
        yield
    faults = broker.faults[known:]
    assert not faults, "\n".join(sorted({fault[-1500:] for fault in faults}))


# ---------------------------------------------------------------------- streams that are not requests
CLOSED_AT_ONCE = {
    "garbage": bytes(random.Random(1).randrange(128, 256) for _ in range(300)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "zero length": bytes(4),
    "negative length": struct.pack(">i", -1),
    "most negative length": struct.pack(">i", -(2**31)),
    "length above the limit": struct.pack(">i", 104_857_601),
    "largest length": struct.pack(">i", 2**31 - 1),
    "shorter than a header": framed(bytes(3)),
    "only half a header": framed(struct.pack(">hh", 3, 1)),
    "header without client id": framed(struct.pack(">hhi", 3, 1, 7)),
    "client id longer than the frame": framed(struct.pack(">hhih", 3, 1, 7, 30_000)),
    "client id of length -2": framed(struct.pack(">hhih", 3, 1, 7, -2)),
    "client id that is no UTF-8": framed(struct.pack(">hhih", 3, 1, 7, 2) + b"\xff\xfe" + bytes(5)),
    "unknown API": framed(struct.pack(">hhih", 999, 0, 7, -1)),
    "negative API": framed(struct.pack(">hhih", -1, 0, 7, -1)),
    "known API that is not served": framed(struct.pack(">hhih", ApiKey.CONTROLLED_SHUTDOWN, 0, 7, -1)),
    "version too high": framed(struct.pack(">hhih", ApiKey.FETCH, 99, 7, -1)),
    "version too low": framed(struct.pack(">hhih", ApiKey.FETCH, 0, 7, -1)),
    "negative version": framed(struct.pack(">hhih", ApiKey.FETCH, -1, 7, -1)),
    "body cut short": framed(METADATA[4:-2]),
    "count beyond the body": framed(request_header(ApiKey.METADATA, 1, 1, None) + struct.pack(">i", 2**31 - 1)),
    "compact count beyond the body": framed(request_header(ApiKey.METADATA, 12, 1, None) + b"\xff\xff\xff\xff\x0f"),
    "endless varint": framed(request_header(ApiKey.METADATA, 12, 1, None) + b"\xff" * 20),
}


@pytest.mark.parametrize("name", CLOSED_AT_ONCE)
async def test_what_is_no_request_closes_the_connection(broker: ServeProcess, name: str) -> None:
    """The broker closes the connection without an answer, also after a valid request that it answered."""
    assert await Prober(broker).is_closed_after(CLOSED_AT_ONCE[name]) == b""
    before = await Prober(broker).is_closed_after(Prober.probe(77) + CLOSED_AT_ONCE[name])
    assert before == b"" or before[4:8] == struct.pack(">i", 77), "an answer to something else"


async def test_the_reason_is_logged_but_limited(broker: ServeProcess) -> None:
    """A client that misbehaves is named in the log; many of them cannot fill the disk with lines."""
    for _ in range(200):
        await Prober(broker).is_closed_after(CLOSED_AT_ONCE["HTTP"])

    def is_named() -> bool:
        return any("it speaks HTTP" in line.get("reason", "") and line["peer"] for line in broker.lines)

    async with asyncio.timeout(ANSWER_LIMIT_S):
        while not is_named():  # other lines may have used up the limit of this second
            await Prober(broker).is_closed_after(CLOSED_AT_ONCE["HTTP"])
    refusals = [line for line in broker.lines if line["event"] == "connection closed"]
    by_second: dict[str, int] = {}
    for line in refusals:
        second = line["timestamp"][:19]
        by_second[second] = by_second.get(second, 0) + 1
    # Seconds of two clocks are not aligned, so a second of the log may overlap two of the limit.
    assert max(by_second.values()) <= 20


async def test_an_unknown_version_of_api_versions_is_answered(broker: ServeProcess) -> None:
    """KIP-511: in version 0, with the versions that are served; the connection stays."""
    prober = Prober(broker)
    (answer,) = await prober.exchange(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1))
    assert answer[:6] == struct.pack(">ih", 7, ErrorCode.UNSUPPORTED_VERSION)
    assert (prober.answered, prober.closed) == (1, 0)
    prober.drop()


# ---------------------------------------------------------------------- frames that arrive slowly or not at all
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 11, 12, 13, len(API_VERSIONS) - 1])
async def test_a_frame_that_ends_early_is_dropped(broker: ServeProcess, cut: int) -> None:
    """A client that ends in the middle of a request receives the earlier answers only, and its connection is closed."""
    answer = await Prober(broker).is_closed_after(API_VERSIONS + API_VERSIONS[:cut], then_end=True)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 1)


async def test_frames_may_come_byte_by_byte(broker: ServeProcess) -> None:
    """However the stream is split, the answers are the same and in order."""
    whole = await Prober(broker).is_closed_after(API_VERSIONS + METADATA + API_VERSIONS, then_end=True)
    reader, writer = await Prober(broker).open()
    async with asyncio.timeout(ANSWER_LIMIT_S):
        for byte in API_VERSIONS + METADATA + API_VERSIONS:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await reader.readexactly(len(whole)) == whole
    writer.transport.abort()


async def test_announced_frames_cost_no_memory(broker: ServeProcess) -> None:
    """Only received bytes use memory: clients that announce more do not block large requests of others."""
    before = broker.resident_bytes()
    greedy = [Prober(broker) for _ in range(20)]
    try:
        for prober in greedy:
            _, writer = await prober.open()
            writer.write(struct.pack(">i", 104_857_600) + request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 1, None))
        client = await broker.connect()
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await client.request(MetadataRequest(topics=None), METADATA_VERSION)
        client.close()
        assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES
    finally:
        for prober in greedy:
            prober.drop()


@pytest.mark.parametrize(
    ("size", "error"),
    [(900_000, ErrorCode.NONE), pytest.param(50_000_000, ErrorCode.MESSAGE_TOO_LARGE, marks=pytest.mark.slow)],
)
async def test_clients_that_only_announce_large_frames_block_no_other(
    broker: ServeProcess, size: int, error: ErrorCode
) -> None:
    """A request that arrives in pieces is answered, though others have announced more than all memory."""
    client = await broker.connect()
    await produce(client, "large", [b"so that the topic exists"])
    greedy = [Prober(broker) for _ in range(4)]
    try:
        for prober in greedy:
            _, writer = await prober.open()
            writer.write(struct.pack(">i", 104_857_600) + request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 1, None))
        await settled(broker)
        async with asyncio.timeout(STARVED_LIMIT_S):
            await produce(client, "large", [bytes(size)], expected=error)
    finally:
        client.close()
        for prober in greedy:
            prober.drop()


async def test_a_silent_client_is_not_closed(broker: ServeProcess) -> None:
    """A client that connects and sends nothing uses no memory, and is served when it sends a request."""
    silent = [Prober(broker) for _ in range(100)]
    for prober in silent:
        await prober.open()
    await settled(broker)
    for prober in silent:
        await prober.exchange(API_VERSIONS[4:])
        assert (prober.answered, prober.closed, prober.stuck) == (1, 0, 0)
        prober.drop()


async def test_a_client_that_never_reads_costs_little(broker: ServeProcess) -> None:
    """Gigabytes of responses are requested and never read: memory stays bounded, and others are served."""
    client = await broker.connect()
    for _ in range(8):
        await produce(client, "unread", [bytes(1000) for _ in range(900)])
    row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 26)
    fetch = request_frame(
        FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 26, topics=[FetchTopic(topic="unread", partitions=[row])]
        ),
        FETCH_VERSION,
        key=ApiKey.FETCH,
    )
    before = broker.resident_bytes()
    deaf = [Prober(broker) for _ in range(10)]
    try:
        for prober in deaf:
            _, writer = await prober.open()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write((fetch + METADATA) * 200)
        await settled(broker)
        assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES
    finally:
        for prober in deaf:
            prober.drop()
        client.close()


async def test_a_client_that_reads_late_gets_all_answers(broker: ServeProcess) -> None:
    """Requests sent while the client does not read are answered completely and in order once it reads."""
    reader, writer = await Prober(broker).open()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    count = 3000
    writer.write(b"".join(METADATA[:8] + struct.pack(">i", number) + METADATA[12:] for number in range(count)))
    await settled(broker)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(ANSWER_LIMIT_S):
        for number in range(count):
            size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
            assert correlation_id == number
            await reader.readexactly(size - 4)
    writer.transport.abort()


# ---------------------------------------------------------------------- requests that no client would send
async def test_odd_requests_are_answered(broker: ServeProcess) -> None:
    """Each valid request is answered in its format or closes the connection; none makes the broker fail."""
    await make_fuzz_topics(broker)
    before = broker.resident_bytes()

    async def ask(number: int) -> int:
        requests = RandomRequests(f"{SEED} {number}", await topic_ids(broker))
        prober = Prober(broker)
        well_answered = 0
        for count in range(ODD_REQUESTS // CONNECTIONS):
            key, version = requests.random.choice(SERVED)
            answers = await prober.exchange(requests.frame(key, version, count))
            if answers:
                check_answer(requests, key, version, count, answers)
                well_answered += 1
            if count % REFRESH_EACH == REFRESH_EACH - 1:
                await make_fuzz_topics(broker)
                requests.know(await topic_ids(broker))
        prober.drop()
        return well_answered

    answered = sum(await asyncio.gather(*map(ask, range(CONNECTIONS))))
    assert answered > ODD_REQUESTS * 3 // 4
    await remove_topics(broker)
    assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES


async def test_a_negative_leader_epoch_is_answered(broker: ServeProcess) -> None:
    """An impossible epoch is unknown: -1, -1 and no error, also in a log that has no epochs yet."""
    await make_fuzz_topics(broker)
    client = await broker.connect()
    row = OffsetForLeaderPartition(partition=1, leader_epoch=-2)
    try:
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=FUZZ_TOPICS[0], partitions=[row])]
        )
        async with asyncio.timeout(ANSWER_LIMIT_S):
            answer = (await client.request(request, 4)).topics[0].partitions[0]
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, -1, -1)
    finally:
        client.close()
        await remove_topics(broker)


async def test_a_session_may_be_changed_while_a_fetch_of_it_waits(broker: ServeProcess) -> None:
    """Two connections share a fetch session; one removes the partition that the other waits for (KIP-227)."""
    await make_fuzz_topics(broker)
    topic = FUZZ_TOPICS[0]

    def fetch(epoch: int, partitions: list[int], *, wait_ms: int = 0, forgotten: bool = False) -> FetchRequest:
        rows = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in partitions]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic=topic, partitions=rows)],
            forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=[0])] if forgotten else [],
        )

    session_id = 0
    waiting, other, writer = [await broker.connect() for _ in range(3)]
    async with asyncio.timeout(ANSWER_LIMIT_S):
        session_id = (await waiting.request(fetch(0, [0]), FETCH_VERSION)).session_id
        parked = waiting.send(fetch(1, [], wait_ms=int(ANSWER_LIMIT_S * 1000)), FETCH_VERSION)
        await settled(broker)
        assert (await other.request(fetch(2, [1], forgotten=True), FETCH_VERSION)).error_code == ErrorCode.NONE
        answer = await parked
        assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, session_id)
        await produce(writer, topic, [b"for the session"])
    for client in (waiting, other, writer):
        client.close()
    await remove_topics(broker)


def check_answer(
    requests: RandomRequests, key: ApiKey, version: int, correlation_id: int, answers: list[bytes]
) -> None:
    """One answer, to this request, that decodes to its end."""
    (answer,) = answers
    found, position = read_response_header(answer, 0, len(answer), flexible=response_header_is_flexible(key, version))
    assert found == correlation_id
    response: Any = codec_for(API[key].response, version).decode(answer, position, len(answer))
    if key == ApiKey.FETCH and response.session_id:
        requests.sessions.append(response.session_id)


# ---------------------------------------------------------------------- small steps
async def settled(broker: ServeProcess) -> None:
    """Returns when the broker has processed everything sent before: later connections are answered later."""
    for _ in range(20):
        prober = Prober(broker)
        await prober.exchange(API_VERSIONS[4:])
        prober.drop()


async def produce(client: WireClient, topic: str, values: list[bytes], *, expected: ErrorCode = ErrorCode.NONE) -> None:
    """One batch into partition 0 of a topic that is created automatically."""
    rows = [PartitionProduceData(index=0, records=build_batch([(0, None, value, ()) for value in values]))]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])
    async with asyncio.timeout(ANSWER_LIMIT_S):
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        while error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            response = await client.request(request, PRODUCE_VERSION)
            error = response.responses[0].partition_responses[0].error_code
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await client.request(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), METADATA_VERSION)
                await asyncio.sleep(0.01)
        assert error == expected, ErrorCode(error)

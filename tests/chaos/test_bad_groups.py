"""Requests of hostile or broken clients to a group coordinator: each is answered, costs little, and affects no other
group.

All tests share one real broker. After each test it has reported no internal error, and a group of one active member
is unchanged: without a heartbeat for the shortest session timeout, its member would be removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lowtide.broker.coordinator.classic.joining import PENDING_MEMBERS_MAX
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
    encode_group_metadata,
    encode_offset_commit,
)
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.leave_group import LeaveGroupRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.protocol.records import iterate_batches
from lowtide.simulation.client import WireClient

from .asking import CREATE_TOPICS_VERSION, PRODUCE_VERSION, topic_request
from .probing import Prober, read_frame
from .serving import ServeProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=1",
    "auto.create.topics.enable=false",
    # These are the limits of memory; test_limits_of_creation has the rate.
    "lowtide.groups.created.per.second=1000000",
)
OFFSETS_TOPIC, TOPIC = "__consumer_offsets", "read"
IDS_AT_ONCE_VERSION, ID_FIRST_VERSION = 3, 4
"""Versions of JoinGroup: the last that admits a member at once, and the first that requires a second request."""

SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, COMMIT_VERSION, OFFSET_FETCH_VERSION = 3, 3, 2, 9, 9
SESSION_MS = 1_800_000
"""The longest session that is allowed: a hostile client wants to be remembered."""

SHORTEST_SESSION_MS, LONG_SESSION_MS = 6_000, 300_000
LIMIT_S = 120.0
MEMORY_LIMIT_BYTES = 300 << 20
"""The memory limit of all members, plus one further request."""

IDS, PIPELINED = 100_000, 500
ERROR, ERROR_POSITION = struct.Struct(">h"), 8
"""The position of the error in a JoinGroup response: behind the correlation id and the throttle time."""

NONE = ErrorCode.NONE


def join_request(
    group: str, metadata: bytes = b"", *, member_id: str = "", session_ms: int = SESSION_MS
) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
    )


def sync_request(group: str, joined: Any, assignment: bytes) -> SyncGroupRequest:
    rows = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)]
    return SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=rows
    )


async def join(client: WireClient, group: str, metadata: bytes = b"", **others: Any) -> Any:
    """Returns the response to a join that admits the member at once."""
    async with asyncio.timeout(LIMIT_S):
        return await client.request(join_request(group, metadata, **others), IDS_AT_ONCE_VERSION)


class Honest:
    """The only member of a group; it sends heartbeats and commits."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.group = "honest"
        self.joined: Any = None
        self.offset = 0

    async def begin(self) -> None:
        self.joined = await join(self.client, self.group, session_ms=30_000)
        assert self.joined.error_code == NONE
        synced = await self.client.request(sync_request(self.group, self.joined, b"all"), SYNC_VERSION)
        assert synced.assignment == b"all"

    async def work(self) -> None:
        """One heartbeat and one commit, both must succeed."""
        generation_id, member_id = self.joined.generation_id, self.joined.member_id
        heartbeat = HeartbeatRequest(group_id=self.group, generation_id=generation_id, member_id=member_id)
        assert (await self.client.request(heartbeat, HEARTBEAT_VERSION)).error_code == NONE
        self.offset += 1
        assert await commit(self.client, self.group, self.offset, generation_id, member_id) == NONE

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        stop = asyncio.Event()

        async def run() -> None:
            while not stop.is_set():
                async with asyncio.timeout(LIMIT_S):
                    await self.work()
                await asyncio.sleep(0.01)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            stop.set()
            await task
        assert await committed(self.client, self.group) == self.offset


async def commit(client: WireClient, group: str, offset: int, generation_id: int = -1, member_id: str = "") -> int:
    """Returns the error of a commit for the topic's first partition."""
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
    )
    async with asyncio.timeout(LIMIT_S):
        while True:
            error: int = (await client.request(request, COMMIT_VERSION)).topics[0].partitions[0].error_code
            if error != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return error
            await asyncio.sleep(0.02)


async def committed(client: WireClient, group: str) -> int:
    """Returns the committed offset of a group for the topic's first partition; -1 for none."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    async with asyncio.timeout(LIMIT_S):
        while (
            row := (await client.request(request, OFFSET_FETCH_VERSION)).groups[0]
        ).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.02)
    assert row.error_code == NONE
    return row.topics[0].partitions[0].committed_offset if row.topics else -1


async def prepare(broker: ServeProcess) -> WireClient:
    """Returns a connection, the topic, and the coordinators' topic."""
    client = await broker.connect()
    await client.request(topic_request(TOPIC, partitions=1), CREATE_TOPICS_VERSION)
    async with asyncio.timeout(LIMIT_S):
        while (await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 4)).coordinators[
            0
        ].error_code != NONE:
            await asyncio.sleep(0.02)
    return client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServeProcess]:
    async with ServeProcess(tmp_path_factory.mktemp("bad-groups") / "log", *SETTINGS) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def honest(broker: ServeProcess) -> Honest:
    member = Honest(await prepare(broker))
    await member.begin()
    return member


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def unharmed(broker: ServeProcess, honest: Honest) -> AsyncIterator[None]:
    async with honest.at_work():
        yield
    assert broker.faults == []


async def test_large_metadata_of_many_groups_is_refused_when_it_is_too_much(broker: ServeProcess) -> None:
    """Members may send any metadata, with any session timeout: the total has a limit.

    A member that leaves frees memory.
    """
    before, metadata = broker.resident_bytes(), bytes(8 << 20)
    client = await broker.connect()
    answers = {group: await join(client, group, metadata) for group in (f"large-{number}" for number in range(20))}
    assert {answer.error_code for answer in answers.values()} == {NONE, ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES
    for group, answer in answers.items():
        if answer.error_code == NONE:
            assert (
                await client.request(LeaveGroupRequest(group_id=group, member_id=answer.member_id), LEAVE_VERSION)
            ).error_code == NONE
    assert (await join(client, "large-19", metadata)).error_code == NONE
    client.close()


async def test_large_metadata_of_many_members_is_refused_when_it_is_too_much(broker: ServeProcess) -> None:
    """The leader receives the metadata of all members: the total cannot exceed a response."""
    clients = [await broker.connect() for _ in range(12)]
    waiting = [client.send(join_request("wide", bytes(4 << 20)), IDS_AT_ONCE_VERSION) for client in clients]
    async with asyncio.timeout(LIMIT_S):
        while not any(
            future.done() and future.result().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED for future in waiting
        ):
            await asyncio.sleep(0.02)
    for client in clients:
        client.close()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("size", "error"), [(8 << 20, ErrorCode.MESSAGE_TOO_LARGE), (20 << 20, ErrorCode.MESSAGE_TOO_LARGE)]
)
async def test_an_assignment_that_cant_be_kept_is_refused(broker: ServeProcess, size: int, error: ErrorCode) -> None:
    """A value too large for a record, or a field too large for a request; the group accepts smaller ones."""
    client, group = await broker.connect(), f"assigned-{size}"
    joined = await join(client, group)
    async with asyncio.timeout(LIMIT_S):
        refused = await client.request(sync_request(group, joined, bytes(size)), SYNC_VERSION)
        assert refused.error_code == error
        again = await join(client, group, member_id=joined.member_id)
        assert again.error_code == NONE
        synced = await client.request(sync_request(group, again, b"less"), SYNC_VERSION)
    assert (synced.error_code, synced.assignment) == (NONE, b"less")
    client.close()


@pytest.mark.slowest
async def test_a_hundred_thousand_ids_from_one_client(broker: ServeProcess) -> None:
    """Ids that are requested and never used, in one group or in many: they are limited, and expire."""
    before = broker.resident_bytes()
    # In one group none may expire before the limit is reached, however slow the machine is.
    for groups, count, session_ms in ((1, 2 * PENDING_MEMBERS_MAX, LONG_SESSION_MS), (IDS, IDS, SHORTEST_SESSION_MS)):
        outcomes = await ask_for_ids(broker, count, groups, session_ms)
        assert set(outcomes) == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}
        assert outcomes[ErrorCode.MEMBER_ID_REQUIRED] >= PENDING_MEMBERS_MAX
    assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES
    client = await broker.connect()
    async with asyncio.timeout(LIMIT_S):
        while (await join(client, "after", bytes(8 << 20))).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            await asyncio.sleep(0.5)
    client.close()


async def ask_for_ids(broker: ServeProcess, count: int, groups: int, session_ms: int) -> Counter[int]:
    """Request member ids in so many groups, on one connection: the count of each error."""
    request = join_request("000000", session_ms=session_ms)
    body = codec_for(JoinGroupRequest, ID_FIRST_VERSION).encode(request)
    template = request_header(ApiKey.JOIN_GROUP, ID_FIRST_VERSION, 1, "greedy") + body
    prober, outcomes = Prober(broker), Counter[int]()
    reader, writer = await prober.open()
    async with asyncio.timeout(2 * LIMIT_S):
        for first in range(0, count, PIPELINED):
            for number in range(first, first + PIPELINED):
                frame = template.replace(b"000000", b"%06d" % (number % groups))
                writer.write(struct.pack(">i", len(frame)) + frame)
            for _ in range(PIPELINED):
                outcomes[ERROR.unpack_from(await read_frame(reader), ERROR_POSITION)[0]] += 1
    prober.drop()
    return outcomes


@pytest.mark.parametrize("client_id", ["anybody", "__admin_client"])
async def test_clients_dont_write_to_the_coordinators_topic(broker: ServeProcess, client_id: str) -> None:
    """Kafka allows it for the client id `__admin_client`; Lowtide allows it for no client."""
    key, value = encode_offset_commit("honest", TOPIC, 0, OffsetCommitValue(offset=0, metadata="", commit_timestamp=0))
    rows = [PartitionProduceData(index=0, records=build_batch([(0, key, value, ())]))]
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=OFFSETS_TOPIC, partition_data=rows)]
    )
    body = request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 1, client_id) + codec_for(
        ProduceRequest, PRODUCE_VERSION
    ).encode(request)
    prober = Prober(broker)
    [answer] = await prober.exchange(body)
    prober.drop()
    response = codec_for(ProduceResponse, PRODUCE_VERSION).decode(answer, 5, len(answer))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_unknown_records_affect_only_themselves(tmp_path: Path) -> None:
    """A log from a newer broker or another program: known records are applied, the others are logged and counted."""
    async with ServeProcess(tmp_path, *SETTINGS) as broker:
        client = await prepare(broker)
        assert await commit(client, "before", 7) == NONE
        await broker.kill()
    append_to_log(
        tmp_path / f"{OFFSETS_TOPIC}-0" / f"{0:020}.log",
        [[record] for record in STRANGE_RECORDS] + [[GARBAGE] * 5_000, [LATER]],
    )
    async with ServeProcess(tmp_path, *SETTINGS) as broker:
        client = await broker.connect()
        assert (await committed(client, "before"), await committed(client, "later")) == (7, 9)
        assert await commit(client, "before", 8) == NONE
        assert (await join(client, "leaderless")).error_code == NONE
        assert broker.faults == []
        told = [line for line in broker.lines if "left aside" in line["event"]]
        assert len(told) < 20
        assert told[-1]["records"] == len(STRANGE_RECORDS) + 5_000


def group_record(leader: str, members: list[str]) -> tuple[bytes, bytes | None]:
    rows = [
        MemberMetadata(
            member_id=name, client_id="", client_host="", session_timeout=6_000, subscription=b"", assignment=b""
        )
        for name in members
    ]
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader=leader, members=rows)
    return encode_group_metadata("leaderless", value)


_KNOWN_KEY, _KNOWN_VALUE = encode_offset_commit(
    "later", TOPIC, 0, OffsetCommitValue(offset=9, metadata="", commit_timestamp=1)
)
assert _KNOWN_VALUE is not None
GARBAGE = (b"\xff", b"garbage")
LATER = (_KNOWN_KEY, _KNOWN_VALUE)
STRANGE_RECORDS: list[tuple[bytes, bytes | None]] = [
    (b"\x03\xe7" + _KNOWN_KEY[2:], _KNOWN_VALUE),  # an unknown type
    (_KNOWN_KEY, b"\x03\xe7" + _KNOWN_VALUE[2:]),  # an unknown version
    (_KNOWN_KEY[:-2], _KNOWN_VALUE),  # a key that is cut
    (_KNOWN_KEY, _KNOWN_VALUE[:-2]),  # a value that is cut
    (_KNOWN_KEY, b""),
    (b"", b""),
    group_record("nobody", ["a"]),
    group_record("a", ["a", "a"]),
]


def append_to_log(path: Path, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
    """Writes batches behind the last one of a segment, as a leader of its epoch would."""
    [*_, (position, last)] = iterate_batches(path.read_bytes())
    content, offset = path.read_bytes()[: position + last.size_bytes], last.next_offset
    for records in batches:
        rows = [(last.max_timestamp, key, value, ()) for key, value in records]
        content += build_batch(rows, base_offset=offset, leader_epoch=last.partition_leader_epoch)
        offset += len(records)
    path.write_bytes(content)

"""A share group (KIP-932) during a soak: no client library for Python has it, so its members speak the protocol.

Each record of the topic must be delivered at least once. The group reads from the end that the topic has when the group
begins. What was delivered is not kept: a piece begins with what its members get first.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import ShareAcknowledgementBatch
from lowtide.protocol.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.simulation.client import WireClient
from tests.chaos.cluster_processes import ANSWER_LIMIT_S

from .programs import QUEUED
from .run import LOADING, SMALL, Run

GROUP, MEMBERS, PARTITIONS = "workers", 2, 2
CONFIGS = SMALL | {"retention.ms": "600000"}
"""Kept longer than a record may wait for its second delivery."""

HEARTBEAT_VERSION, FETCH_VERSION = 1, 2
HEARTBEAT_EACH_S = 3.0
ACCEPT = 1
WAIT_MS = 500
RETRY_S = 0.2
MISSING_LIMIT_S = 300.0
"""How long a record may be missing: a member that died holds it for half a minute, and brokers restart."""

SESSION_IS_LOST = {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH}
MEMBER_IS_LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}


class Delivered:
    """The offsets of a partition that members have got."""

    def __init__(self) -> None:
        self.next: int | None = None
        """All before it are delivered, or were when this began."""
        self._beyond: set[int] = set()
        self._stuck_since_s = time.monotonic()

    def add(self, first: int, last: int) -> int:
        """Adds a range, its end inclusive. Returns how many are new."""
        if self.next is None:
            self.next = first
        new = {offset for offset in range(first, last + 1) if offset >= self.next} - self._beyond
        self._beyond |= new
        before = self.next
        while self.next in self._beyond:
            self._beyond.remove(self.next)
            self.next += 1
        if self.next != before or not self._beyond:
            self._stuck_since_s = time.monotonic()
        return len(new)

    def check(self, partition: int) -> None:
        """Errors: AssertionError if an offset is missing for too long."""
        missing_s = time.monotonic() - self._stuck_since_s if self._beyond else 0.0
        assert missing_s < MISSING_LIMIT_S, (
            f"{QUEUED}-{partition}: offset {self.next} was not delivered within {missing_s:.0f} s, "
            f"and {len(self._beyond)} after it were"
        )


class Session:
    """A share session of a member with the leader of one partition."""

    def __init__(self, run: Run, member_id: str, topic_id: bytes, partition: int) -> None:
        self._run = run
        self._member_id = member_id
        self._topic_id = topic_id
        self._partition = partition
        self._client: WireClient | None = None
        self._epoch = 0
        self._acquired: list[tuple[int, int]] = []

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._epoch, self._acquired = None, 0, []

    async def turn(self) -> list[tuple[int, int]]:
        """Accepts what the last turn acquired, and acquires more. Returns that: first and last offsets.

        Errors: OSError, also where the partition has no leader; the next turn begins a new session.
        """
        if self._client is None:
            row = await self._run.cluster.partition(QUEUED, self._partition)
            if row is None or row.leader_id not in self._run.cluster.awake:
                raise ConnectionError("no leader is known")
            self._client = await self._run.cluster.connect(row.leader_id)
        async with asyncio.timeout(WAIT_MS / 1000 + ANSWER_LIMIT_S):
            answer = await self._client.request(self._request(self._acquired), FETCH_VERSION)
        if answer.error_code in SESSION_IS_LOST:
            raise ConnectionError("the session is lost")
        assert answer.error_code == ErrorCode.NONE or answer.error_code in LOADING, answer
        self._epoch, self._acquired = self._epoch + 1, []
        for row in (row for topic in answer.responses for row in topic.partitions):
            if row.error_code:
                raise ConnectionError(ErrorCode(row.error_code).name)
            self._acquired = [(each.first_offset, each.last_offset) for each in row.acquired_records]
        return self._acquired

    def _request(self, acquired: list[tuple[int, int]]) -> ShareFetchRequest:
        batches = [
            ShareAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
            for first, last in acquired
        ]
        rows = [ShareFetchPartition(partition_index=self._partition, acknowledgement_batches=batches)]
        topics = [ShareFetchTopic(topic_id=self._topic_id, partitions=rows)] if batches or not self._epoch else []
        return ShareFetchRequest(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_records=500,
            batch_size=500,
            topics=topics,
            forgotten_topics_data=[],
        )


class ShareMember:
    """A member from its first heartbeat to its last."""

    def __init__(self, run: Run, topic_id: bytes, delivered: list[Delivered]) -> None:
        self._run = run
        self._id = str(uuid.uuid4())
        self._topic_id = topic_id
        self._delivered = delivered
        self._epoch = 0
        self._sessions: dict[int, Session] = {}

    async def live(self, until_s: float) -> None:
        """Reads until this moment of the monotonic clock, or the end of the run."""
        beaten_s = float("-inf")
        while self._run.goes_on and time.monotonic() < until_s:
            if time.monotonic() - beaten_s > HEARTBEAT_EACH_S:
                beaten_s = time.monotonic()
                await self._beat()
            for partition, session in list(self._sessions.items()):
                try:
                    ranges = await session.turn()
                except OSError:
                    session.close()
                    await self._run.pause(RETRY_S)
                    continue
                for first, last in ranges:
                    self._run.counts["share records delivered"] += self._delivered[partition].add(first, last)
                self._delivered[partition].check(partition)
            if not self._sessions:
                await self._run.pause(RETRY_S)
        for session in self._sessions.values():
            session.close()
        self._epoch = -1
        await self._beat()

    async def _beat(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._id,
            member_epoch=self._epoch,
            subscribed_topic_names=None if self._epoch else [QUEUED],
        )
        answer: Any = await self._run.ask_coordinator(GROUP, request, HEARTBEAT_VERSION)
        if answer is None or answer.error_code in LOADING or self._epoch < 0:
            return
        if answer.error_code in MEMBER_IS_LOST:
            self._epoch = 0
            return
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = {number for row in answer.assignment.topic_partitions for number in row.partitions}
            for partition in self._sessions.keys() - assigned:
                self._sessions.pop(partition).close()
            for partition in assigned - self._sessions.keys():
                self._sessions[partition] = Session(self._run, self._id, self._topic_id, partition)


async def share(run: Run) -> None:
    """Members of a share group, each replaced by a new one after a while."""
    await run.topic(QUEUED, PARTITIONS, CONFIGS)
    topic_id = (await run.topic_row(QUEUED)).topic_id
    delivered = [Delivered() for _ in range(PARTITIONS)]
    life_s = run.options.member_minutes * 60

    async def places(number: int) -> None:
        first = True
        while run.goes_on:
            member = ShareMember(run, topic_id, delivered)
            await member.live(time.monotonic() + life_s * (1 + number / MEMBERS if first else 1))
            first = False
            run.counts["share members replaced"] += run.goes_on

    await asyncio.gather(*(places(number) for number in range(MEMBERS)))

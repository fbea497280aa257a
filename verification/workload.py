"""The clients of a run: in each partition a producer, a deleter and readers, which work until they are stopped.

Readers ask for deleted offsets most of the time, for the last deleted one above all: if a log comes back in part, that
one is readable. Deletes can be paused, so that a later delete does not hide what came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from lowtide.admin.errors import AdminError, AuthenticationFailedError
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.runtime.tasks import TaskRegistry
from lowtide.verification.operations import Result

if TYPE_CHECKING:
    from lowtide.admin.cluster_view import PartitionDescription
    from lowtide.runtime.random import Random
    from lowtide.verification.judge import PartitionJudge
    from lowtide.verification.requests import RecordedRequests

PRODUCE_PAUSE_S: Final = 0.1
DELETE_PAUSE_S: Final = 0.8
READ_PAUSE_S: Final = 0.05
ERASE_PAUSE_S: Final = 10.0
"""The longest pauses after an operation; the mean is half of them."""

ERROR_PAUSE_S: Final = 0.1

BATCH_RECORDS_MAX: Final = 8
LIVE_RECORDS: Final = 40
"""A delete leaves at most about so many records."""

VIEW_TIMEOUT_S: Final = 5.0
VIEW_PAUSE_MS: Final = 250
"""The metadata are asked for again at most this often."""


class ClusterLeaders:
    """The leaders and replicas of the topics, as the metadata last had them."""

    def __init__(self, requests: RecordedRequests, topics: list[str]) -> None:
        self.elections = 0
        """How often a partition had another leader than before."""
        self._requests = requests
        self._topics = topics
        self._partitions: dict[TopicPartition, PartitionDescription] = {}
        self._asked_ms = -VIEW_PAUSE_MS
        self._asking = asyncio.Lock()

    def known(self, partition: TopicPartition) -> PartitionDescription | None:
        """Returns the partition, if the last metadata have it."""
        return self._partitions.get(partition)

    async def leader(self, partition: TopicPartition) -> BrokerId | None:
        """Returns the leader that is known; if there is none, asks for the metadata."""
        if self._leader_of(partition) is None:
            await self.refresh()
        return self._leader_of(partition)

    def _leader_of(self, partition: TopicPartition) -> BrokerId | None:
        known = self._partitions.get(partition)
        return None if known is None else known.leader

    async def refresh(self) -> None:
        """Asks for the metadata, unless they are new. Without an answer the old ones stay.

        Errors: AuthenticationFailedError.
        """
        async with self._asking:
            if self._requests.now_ms() - self._asked_ms < VIEW_PAUSE_MS:
                return
            try:
                view = await self._requests.client.call(VIEW_TIMEOUT_S).view(self._topics)
            except AuthenticationFailedError:
                raise
            except AdminError:
                return
            finally:
                self._asked_ms = self._requests.now_ms()
        for topic in view.topics.values():
            for number, row in topic.partitions.items():
                partition = TopicPartition(topic.name, number)
                before = self._partitions.get(partition)
                if row.leader is not None and before is not None and row.leader_epoch > before.leader_epoch:
                    self.elections += 1
                self._partitions[partition] = row


class DeleteWorkload:
    """The clients of all partitions. `failure` is set if one of them fails for good."""

    def __init__(self, requests: RecordedRequests, leaders: ClusterLeaders, random: Random) -> None:
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._leaders = leaders
        self._random = random
        self._tasks = TaskRegistry(self._on_failure)
        self._may_delete = asyncio.Event()
        self._may_delete.set()
        self._deleting = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, *, erases: bool, reads_followers: bool) -> None:
        """Starts the clients. `erases`: the cluster is Lowtide's, and keys are erased too."""
        works = [self._produce, self._delete, self._consume, self._probe_leader]
        works += [self._erase] if erases else []
        works += [self._probe_followers] if reads_followers else []
        for partition in self._requests.history.judges:
            for work in works:
                self._tasks.spawn(self._repeat(work, partition), name=f"{work.__name__} {partition}")

    async def stop(self) -> None:
        """Ends all clients at once; their requests have no result."""
        await self._tasks.cancel_all()

    async def pause_deletes(self) -> None:
        """Waits until no delete and no erasure is pending, and lets none begin."""
        self._may_delete.clear()
        await self._idle.wait()

    def hold_deletes(self) -> None:
        """Prevents new deletes from now on."""
        self._may_delete.clear()

    async def erase_before_fault(self) -> None:
        """Erases a person in each partition, also while deletes are held: the records would be live without it."""
        partitions = self._requests.history.judges
        leaders = [(partition, await self._leaders.leader(partition)) for partition in partitions]
        await asyncio.gather(
            *(self._erase_live(partition, leader) for partition, leader in leaders if leader is not None)
        )

    def resume_deletes(self) -> None:
        """Ends a pause."""
        self._may_delete.set()

    def _on_failure(self, _: str, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    # ------------------------------------------------------------------ clients
    async def _repeat(
        self, work: Callable[[TopicPartition, BrokerId], Awaitable[bool]], partition: TopicPartition
    ) -> None:
        """Repeats one client's work, and finds the leader again after an error."""
        while True:
            leader = await self._leaders.leader(partition)
            if leader is None or not await work(partition, leader):
                await self._leaders.refresh()
                await asyncio.sleep(ERROR_PAUSE_S)

    async def _rest(self, longest_s: float) -> None:
        await asyncio.sleep(self._random.uniform(0, longest_s))

    def _judge(self, partition: TopicPartition) -> PartitionJudge:
        return self._requests.history.judges[partition]

    async def _produce(self, partition: TopicPartition, leader: BrokerId) -> bool:
        await self._rest(PRODUCE_PAUSE_S)
        written = await self._requests.produce(partition, leader, self._random.randint(1, BATCH_RECORDS_MAX))
        return written.result is Result.OK

    async def _delete(self, partition: TopicPartition, leader: BrokerId) -> bool:
        await self._rest(DELETE_PAUSE_S)
        judge = self._judge(partition)
        deleted, end = _deleted_below(judge), judge.acknowledged_end
        offset = self._random.randint(max(deleted + 1, end - LIVE_RECORDS), max(end, deleted + 1))
        if not self._random.randrange(10):
            offset = self._random.randint(0, deleted)  # Must change nothing.
        if offset > end:
            return True
        async with _Turn(self):
            deleting = await self._requests.delete(partition, leader, offset)
        return deleting.result is Result.OK

    async def _erase(self, partition: TopicPartition, leader: BrokerId) -> bool:
        await self._rest(ERASE_PAUSE_S)
        async with _Turn(self):
            return await self._erase_live(partition, leader)

    async def _erase_live(self, partition: TopicPartition, leader: BrokerId) -> bool:
        """Erases a person who has a live record."""
        judge = self._judge(partition)
        live = self._random.randint(_deleted_below(judge), judge.acknowledged_end)
        erasing = await self._requests.erase(partition, leader, judge.person_at(live))
        return erasing.result is Result.OK

    async def _consume(self, partition: TopicPartition, leader: BrokerId) -> bool:
        """Reads all live records once."""
        position: Offset = _deleted_below(self._judge(partition))
        while True:
            read = await self._requests.read(partition, leader, position, leader=True)
            await self._rest(READ_PAUSE_S)
            possible = self._judge(partition).possible_delete
            if read.result is Result.REFUSED and position < possible:
                position = possible
                continue
            if read.result is not Result.OK:
                return False
            if read.end == position:
                return True
            position = read.end

    async def _probe_leader(self, partition: TopicPartition, leader: BrokerId) -> bool:
        await self._rest(READ_PAUSE_S)
        deleted = _deleted_below(self._judge(partition))
        if not self._random.randrange(4):
            return (await self._requests.list_earliest(partition, leader)).result is Result.OK
        read = await self._requests.read(partition, leader, self._deleted_offset(deleted), leader=True)
        return read.result is not Result.UNKNOWN

    async def _probe_followers(self, partition: TopicPartition, leader: BrokerId) -> bool:
        known = self._leaders.known(partition)
        for broker in () if known is None else known.replicas:
            await self._rest(READ_PAUSE_S)
            if broker != leader:
                deleted = _deleted_below(self._judge(partition))
                start = self._deleted_offset(deleted) if self._random.randrange(3) else deleted
                await self._requests.read(partition, broker, start, leader=False)
        await self._rest(READ_PAUSE_S)
        return True

    def _deleted_offset(self, deleted: Offset) -> Offset:
        """Returns the last deleted offset, or sometimes a lower one."""
        lower = not self._random.randrange(3)
        return max(self._random.randint(0, deleted) if lower else deleted - 1, 0)

    # ------------------------------------------------------------------ turns of deletes
    async def begin_turn(self) -> None:
        """Waits until deletes may begin, and counts one."""
        while not self._may_delete.is_set():
            await self._may_delete.wait()
        self._deleting += 1
        self._idle.clear()

    def end_turn(self) -> None:
        """Ends a delete."""
        self._deleting -= 1
        if not self._deleting:
            self._idle.set()


class _Turn:
    """The time of one delete or erasure."""

    def __init__(self, workload: DeleteWorkload) -> None:
        self._workload = workload

    async def __aenter__(self) -> None:
        await self._workload.begin_turn()

    async def __aexit__(self, *_: object) -> None:
        self._workload.end_turn()


def _deleted_below(judge: PartitionJudge) -> Offset:
    """Returns the end of the highest acknowledged delete, exclusive."""
    return judge.deletes[-1].offset if judge.deletes else 0

"""Notes in the metadata where the last acknowledged erasure of a partition ends.

A leader whose log lacks that place may lack erasures (`follower_reads.lacks_erasures`). The leader notes it before an
erasure is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step, step_sized
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.records import encode
from lowtide.metadata.store import AmbiguousError, Compare, LeaseGoneError, Put, UnavailableError
from lowtide.protocol.client.retries import Backoff
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.partition import Partition

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.metadata.image import PartitionImage

_BACKOFF: Final = Backoff(20, 1_000)
_MAY_PASS: Final = (ConflictError, UnavailableError, AmbiguousError)
_ENDED: Final = (FencedError, LeaseGoneError, NotControllerError, SessionError)


class ErasureMarks:
    """Writes the marks of partitions that one broker leads."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    async def note(
        self, ends: Mapping[TopicPartition, Offset], deadline: float, *, replaces: bool = False
    ) -> ErrorCode:
        """Writes the exclusive ends of erasures, unless a later one is noted, or always if `replaces`.

        The batches before the ends must be in the log. Errors: NOT_LEADER_OR_FOLLOWER, COORDINATOR_NOT_AVAILABLE if the
        loop's time has reached `deadline` or the registration ended.
        """
        loop, failures = asyncio.get_running_loop(), 0
        while loop.time() < deadline:
            puts = self._puts(ends, replaces=replaces)
            if isinstance(puts, ErrorCode):
                return puts
            try:
                steps = [Step(tuple(put for put, _ in some), tuple(c for _, c in some)) for some in step_sized(puts)]
                if steps:
                    await self._broker.metadata.commit(ChangePlan(tuple(steps), needs_controller=False))
            except _MAY_PASS:
                failures += 1
                await asyncio.sleep(_BACKOFF.rest_ms(failures, self._broker.random.uniform(-1, 1)) / 1000)
            except _ENDED:
                break
            else:
                return ErrorCode.NONE
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _puts(self, ends: Mapping[TopicPartition, Offset], *, replaces: bool) -> list[tuple[Put, Compare]] | ErrorCode:
        puts = []
        image = self._broker.metadata.image
        for key, end_offset in ends.items():
            partition, topic = self._broker.replicas.find(*key), image.topics.get(key.topic)
            if isinstance(partition, ErrorCode) or topic is None or topic.topic_id != partition.topic_id:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            state = topic.partitions[key.partition]
            if not partition.is_leader or state.leader_epoch != partition.leader_epoch:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            mark = _mark(partition, end_offset)
            if _is_noted(state, mark, replaces=replaces):
                continue
            name = keys.partition(topic.topic_id, key.partition)
            record = state.changed(erasures_end=mark[1], erasures_epoch=mark[0])
            puts.append((Put(name, encode(record)), Compare(name, "modify", "==", state.modify_revision)))
        return puts


def _mark(partition: Partition, end_offset: Offset) -> tuple[int, Offset]:
    """Returns leader epoch and end of the batch before `end_offset`."""
    return partition.log.leader_epochs.epoch_at(end_offset - 1) if end_offset else -1, end_offset


def _is_noted(state: PartitionImage, mark: tuple[int, Offset], *, replaces: bool) -> bool:
    noted = (state.erasures_epoch, state.erasures_end)
    return noted == mark if replaces else noted >= mark

"""The quick path of OffsetCommit: offsets of one topic, without metadata.

Most commits of most groups are that. The compiled module reads the request, makes the records, and writes the answer;
what is decided is decided here, in the order of `handlers.offset_commit`, which is the definition. Whatever isn't usual
is left to it before anything is changed: partitions that don't exist, a coordinator that isn't ready, more offsets than
there is room for, an old member epoch, offsets that are kept with who committed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.broker.coordinator.groups.committers import keeps_committers
from lowtide.broker.coordinator.runtime.effects import plain_commits
from lowtide.broker.network.routes import QuickPath
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
    from lowtide.broker.coordinator.runtime.effects import Effects
    from lowtide.broker.pending import Pending
    from lowtide.metadata.image import TopicImage
    from lowtide.protocol.native import CommittedRow
    from lowtide.protocol.native import SmallCommit as Asked


def small_commit(groups: GroupCoordinator) -> QuickPath | None:
    """The quick path over the groups of a broker; None without the compiled module."""
    compiled = native.compiled
    if compiled is None:
        return None
    encode = compiled.offset_records

    def handle(asked: Asked, _buffer: memoryview, _client: Any) -> Any:
        group_id, generation, member_id, instance_id, version, wanted, largest, rows, answer = asked
        image = groups.broker.metadata.image
        topic = image.topics.get(wanted) if isinstance(wanted, str) else image.topic_by_id(wanted)
        if topic is None or largest >= len(topic.partitions) or keeps_committers(groups.broker, topic):
            return None
        shard = groups.find(group_id)
        if isinstance(shard, ErrorCode) or not shard.state.admission.has_room_for(len(rows)):
            return None

        member = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[],
        )
        effects = groups.effects()
        error = shard.state.admit_commit(member, version, effects)
        groups.set_timer(shard)
        if error == ErrorCode.STALE_MEMBER_EPOCH:
            return None  # It may commit for partitions that it was given before (KIP-1251), which were not looked at.
        if error != ErrorCode.NONE:
            return _failed(topic, rows, error)
        if shard.commits_at_once:
            wall_ms = effects.wall_ms
            records, change = plain_commits(
                group_id, topic.name, rows, wall_ms=wall_ms, topic_id=topic.topic_id, encode=encode
            )
            offset = groups.keep(shard, records, wall_ms)
            if offset is not None:
                shard.state.note(change, offset)
                return answer

        def decide(pending: Pending[Any], effects: Effects) -> None:
            effects.keep_plain_offsets(group_id, topic.name, rows, topic_id=topic.topic_id, encode=encode)
            effects.answer_when_committed(pending, answer, lambda error: _failed(topic, rows, error))

        pending: Pending[Any] = groups.decide(shard, decide)
        return pending

    return QuickPath(compiled.read_commit, handle)


def _failed(topic: TopicImage, rows: tuple[CommittedRow, ...], error: ErrorCode) -> OffsetCommitResponse:
    partitions = [OffsetCommitResponsePartition(partition_index=number, error_code=error) for number, _, _ in rows]
    return OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)]
    )

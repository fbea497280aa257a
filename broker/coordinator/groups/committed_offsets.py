"""The committed offsets of one coordinator's groups, and those of open transactions.

Guards: only records change an offset (`apply`, `apply_pending`, `end_transaction`), so a coordinator that loads the log
has the same offsets. An offset of an open transaction is never returned; while a partition has one, its committed
offset does not expire.

Source: Kafka's `OffsetMetadataManager`, `OffsetExpirationConditionImpl`; KIP-98, KIP-211 (expiry), KIP-447, KIP-496
(deletion).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from lowtide.broker.coordinator.group import Group
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.committers import NO_COMMITTER, NOBODY, OffsetCommitter
from lowtide.broker.coordinator.groups.pending_offsets import PendingOffsets
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.group_records import OffsetCommitKey, OffsetCommits, OffsetCommitValue
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.messages.offset_delete import (
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_TOPIC_ID, Offset, ProducerId, TopicId

ResponseTopicT = TypeVar("ResponseTopicT")
ResponseRowT = TypeVar("ResponseRowT", OffsetCommitResponsePartition, TxnOffsetCommitResponsePartition)


_SHARED_ROWS: Final = 256
_KEPT_ROWS: Final[dict[type[Any], list[Any]]] = {
    row_type: [row_type(partition_index=number, error_code=NONE) for number in range(_SHARED_ROWS)]
    for row_type in (OffsetCommitResponsePartition, TxnOffsetCommitResponsePartition)
}
"""The response rows of kept offsets in the first partitions. They are shared because rows don't change."""

NO_RETENTION_TIME: Final = -1
"""The broker decides how long offsets are kept."""

_LATEST_MS: Final = 2**63 - 1
"""The largest timestamp of a record: forever."""


class CommittedOffsets:
    """The offsets of groups. `offsets`: group → topic → partition → committed value."""

    def __init__(self, settings: GroupSettings, admission: GroupAdmission | None = None) -> None:
        """`admission` is shared by all groups of a broker."""
        self._settings = settings
        self._admission = admission if admission is not None else GroupAdmission(settings)
        self.offsets: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self.pending = PendingOffsets()

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Applies a record, which is later than all others so far."""
        if value is not None:
            self._keep_all(key.group, key.topic, {key.partition: value}, len(value.metadata))
            if self.pending.by_producer:
                self.pending.outdo(key.group, key.topic, key.partition)
            return
        self.pending.remove(key.group, key.topic, key.partition)
        topics = self.offsets.get(key.group)
        partitions = topics.get(key.topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        gone = partitions.pop(key.partition, None)
        if gone is not None:
            self._admission.forget((gone,))
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self.offsets[key.group]

    def apply_commits(self, commits: OffsetCommits) -> None:
        """Applies several records, as `apply` does."""
        self._keep_all(commits.group, commits.topic, commits.values, commits.metadata_size)
        if self.pending.by_producer:
            for partition in commits.values:
                self.pending.outdo(commits.group, commits.topic, partition)

    def _keep_all(self, group: str, topic: str, values: Mapping[int, OffsetCommitValue], metadata_size: int) -> None:
        """Sets offsets of one topic by partition, and counts them."""
        partitions, admission = self.offsets.setdefault(group, {}).setdefault(topic, {}), self._admission
        before = len(partitions)
        if admission.metadata_bytes:
            for number in values:
                known = partitions.get(number)
                if known is not None:
                    admission.metadata_bytes -= len(known.metadata)
        partitions.update(values)
        admission.offset_count += len(partitions) - before
        admission.metadata_bytes += metadata_size

    def release(self) -> None:
        """Drops all offsets: another broker coordinates the groups."""
        for topics in self.offsets.values():
            for partitions in topics.values():
                self._admission.forget(partitions.values())
        self.offsets.clear()

    def apply_pending(
        self, producer_id: ProducerId, key: OffsetCommitKey, value: OffsetCommitValue, offset: Offset
    ) -> None:
        """Applies the record at `offset`, which belongs to a producer's open transaction."""
        self.pending.add(producer_id, key, value, offset)

    def end_transaction(self, producer_id: ProducerId, *, is_commit: bool) -> list[str]:
        """Commits or drops the pending offsets of a producer. Returns their groups."""
        groups: dict[str, None] = {}
        for key, row in self.pending.end(producer_id):
            groups[key.group] = None
            if is_commit and row.value is not None:
                self.pending.outdo(key.group, key.topic, key.partition, row.record_offset)
                self._keep_all(key.group, key.topic, {key.partition: row.value}, len(row.value.metadata))
        return list(groups)

    def has_any(self, group_id: str) -> bool:
        """Returns whether a group has committed offsets, or pending ones."""
        return group_id in self.offsets or self.pending.has_any(group_id)

    def group_ids(self) -> list[str]:
        """Returns the groups with committed or pending offsets."""
        return list(dict.fromkeys((*self.offsets, *self.pending.group_ids())))

    def find(self, group_id: str, topic: str, partition: int, topic_id: TopicId) -> OffsetCommitValue | None:
        """Returns the committed offset of a partition; with a topic id, not one of another topic of that name."""
        found = self.offsets.get(group_id, {}).get(topic, {}).get(partition)
        if found is None or (found.topic_id != topic_id and ZERO_TOPIC_ID not in (found.topic_id, topic_id)):
            return None
        return found

    def topics_of(self, group_id: str) -> Iterator[tuple[str, list[int]]]:
        """Yields the partitions with committed offsets, topic by topic. Commits may come meanwhile."""
        for topic, partitions in list(self.offsets.get(group_id, {}).items()):
            yield topic, list(partitions)

    def commit(
        self,
        request: OffsetCommitRequest,
        topics: Iterable[OffsetCommitRequestTopic],
        effects: Effects,
        committers: Mapping[str, OffsetCommitter] = NOBODY,
    ) -> list[OffsetCommitResponseTopic]:
        """Requests the records of a commit. `topics` exist; `committers` are recorded for the topics that they name.

        Errors, for single partitions: OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE.
        """
        retention_ms = request.retention_time_ms
        expires_ms = (
            NO_TIMESTAMP if retention_ms == NO_RETENTION_TIME else min(effects.wall_ms + retention_ms, _LATEST_MS)
        )
        types = OffsetCommitResponseTopic, OffsetCommitResponsePartition
        return self._keep_topics(request.group_id, topics, expires_ms, types, effects, committers)

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        topics: Iterable[TxnOffsetCommitRequestTopic],
        effects: Effects,
        committers: Mapping[str, OffsetCommitter] = NOBODY,
    ) -> list[TxnOffsetCommitResponseTopic]:
        """Commits as `commit` does, but with records in the producer's transaction."""
        effects.producer = (request.producer_id, request.producer_epoch)
        types = TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition
        return self._keep_topics(request.group_id, topics, NO_TIMESTAMP, types, effects, committers)

    def _keep_topics(
        self,
        group_id: str,
        topics: Iterable[OffsetCommitRequestTopic] | Iterable[TxnOffsetCommitRequestTopic],
        expires_ms: int,
        types: tuple[Callable[..., ResponseTopicT], type[ResponseRowT]],
        effects: Effects,
        committers: Mapping[str, OffsetCommitter],
    ) -> list[ResponseTopicT]:
        """Requests the records of offsets. Returns response topics of these `types`."""
        topic_type, row_type = types
        answered = []
        for topic in topics:
            committer = committers.get(topic.name, NO_COMMITTER)
            rows = self._keep(group_id, topic, expires_ms, row_type, effects, committer)
            answered.append(topic_type(name=topic.name, topic_id=topic.topic_id, partitions=rows))
        return answered

    def _keep(
        self,
        group_id: str,
        topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
        expires_ms: int,
        row_type: type[ResponseRowT],
        effects: Effects,
        committer: OffsetCommitter,
    ) -> list[ResponseRowT]:
        """Requests the records of one topic's offsets. Returns the response rows.

        If a partition is named twice, its last offset is kept.
        """
        # The record version with an expiry has no epochs, ids or committers.
        keeps_all = expires_ms == NO_TIMESTAMP
        topic_id, by = (topic.topic_id, committer) if keeps_all else (ZERO_TOPIC_ID, NO_COMMITTER)
        (committer_name, may_delete), wall_ms, kept_size = by, effects.wall_ms, 0
        needs_check = not self._admission.has_room_for(len(topic.partitions))
        kept_rows = _KEPT_ROWS[row_type]
        values: dict[int, OffsetCommitValue] = {}
        rows: list[ResponseRowT] = []
        for row in topic.partitions:
            number, metadata = row.partition_index, row.committed_metadata or ""
            if metadata or needs_check:
                error = self._check(group_id, topic.name, number, metadata, (len(values), kept_size))
                if error != NONE:
                    rows.append(row_type(partition_index=number, error_code=error))
                    continue
                kept_size += len(metadata)
            values[number] = OffsetCommitValue(
                offset=row.committed_offset,
                leader_epoch=row.committed_leader_epoch if keeps_all else NO_LEADER_EPOCH,
                metadata=metadata,
                commit_timestamp=wall_ms,
                expire_timestamp=expires_ms,
                topic_id=topic_id,
                committer=committer_name,
                may_delete=may_delete,
            )
            rows.append(
                kept_rows[number] if number < _SHARED_ROWS else row_type(partition_index=number, error_code=NONE)
            )
        if values:
            if kept_size:
                kept_size = sum([len(value.metadata) for value in values.values()])
            effects.keep_offsets(OffsetCommits(group_id, topic.name, values, kept_size))
        return rows

    def _check(self, group_id: str, topic: str, partition: int, metadata: str, kept: tuple[int, int]) -> ErrorCode:
        """Checks whether an offset may be kept, after `kept` offsets and bytes of metadata of the same request.

        One that replaces an offset and takes no more memory is always allowed. Errors: those of `commit`.
        """
        if metadata and _is_longer(metadata, self._settings.offset_metadata_max_bytes):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        error = self._admission.check_offset(metadata, *kept)
        if error != NONE:
            known = self.offsets.get(group_id, {}).get(topic, {}).get(partition)
            if known is not None and len(metadata) <= len(known.metadata):
                return NONE
            self._admission.refused_count += 1
        return error

    def delete(
        self, group: Group, topics: Iterable[OffsetDeleteRequestTopic], effects: Effects
    ) -> list[OffsetDeleteResponseTopic]:
        """Requests tombstones of offsets, pending ones too.

        Topics that the group consumes get GROUP_SUBSCRIBED_TO_TOPIC.
        """
        rows = []
        for topic in topics:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic.name) else NONE
            known = self.offsets.get(group.group_id, {}).get(topic.name, {})
            numbers = dict.fromkeys(row.partition_index for row in topic.partitions)
            for number in numbers:
                if error == NONE and (number in known or self.pending.has(group.group_id, topic.name, number)):
                    effects.keep_offset(group.group_id, topic.name, number, None)
            partitions = [OffsetDeleteResponsePartition(partition_index=number, error_code=error) for number in numbers]
            rows.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return rows

    def delete_all(self, group_id: str, effects: Effects) -> None:
        """Requests tombstones of all offsets of a group, pending ones too."""
        committed = self.offsets.get(group_id, {})
        for topic, partitions in committed.items():
            for partition in partitions:
                effects.keep_offset(group_id, topic, partition, None)
        for topic, partition, _ in self.pending.of_group(group_id):
            if partition not in committed.get(topic, ()):
                effects.keep_offset(group_id, topic, partition, None)

    def delete_topics(self, group_id: str, deleted: Iterable[tuple[str, TopicId]], effects: Effects) -> None:
        """Requests tombstones of a group's offsets in deleted topics, not in newer topics of their names."""
        topics = self.offsets.get(group_id, {})
        gone = dict(deleted)
        for name, topic_id in gone.items():
            for partition, value in topics.get(name, {}).items():
                if value.topic_id in (ZERO_TOPIC_ID, topic_id):
                    effects.keep_offset(group_id, name, partition, None)
        for name, partition, values in self.pending.of_group(group_id):
            is_about = name in gone and all(value.topic_id in (ZERO_TOPIC_ID, gone[name]) for value in values)
            if is_about and partition not in topics.get(name, ()):
                effects.keep_offset(group_id, name, partition, None)

    def expire(self, group: Group, effects: Effects) -> bool:
        """Requests tombstones of a group's expired offsets. Returns whether none is left then.

        Offsets of an empty group are kept for the retention time since it became empty; those of a group with members
        since their commit, but never those of topics that it consumes, or of partitions with pending offsets. Old
        clients may set the time themselves.
        """
        if not self.has_any(group.group_id):
            return True
        if not group.may_expire_offsets:
            return False
        since_empty = group.since_empty_ms
        oldest_ms = effects.wall_ms - self._settings.offsets_retention_ms
        none_left = not self.pending.has_any(group.group_id)
        for topic, partitions in self.offsets.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                none_left = False
                continue
            for partition, value in partitions.items():
                if value.expire_timestamp != NO_TIMESTAMP:
                    outdated = effects.wall_ms >= value.expire_timestamp
                else:
                    outdated = (since_empty if since_empty is not None else value.commit_timestamp) <= oldest_ms
                if outdated and not self.pending.has(group.group_id, topic, partition):
                    effects.keep_offset(group.group_id, topic, partition, None)
                else:
                    none_left = False
        return none_left


def _is_longer(metadata: str, limit: int) -> bool:
    """Returns whether a text exceeds the limit as Kafka counts: characters beyond U+FFFF count twice."""
    if len(metadata) > limit:
        return True
    return 2 * len(metadata) > limit and not metadata.isascii() and len(metadata.encode("utf-16-le")) > 2 * limit

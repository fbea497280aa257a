"""What a decision of a coordinator asks for: records to keep, and answers to give; and its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.consumer_group_records import ConsumerGroupChange, encode_change
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import (
    GroupMetadata,
    GroupMetadataValue,
    OffsetCommit,
    OffsetCommitKey,
    OffsetCommits,
    OffsetCommitValue,
    OffsetRecords,
    encode_group_metadata,
    encode_offset_commit,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, ProducerEpoch, ProducerId, TopicId

if TYPE_CHECKING:
    from lowtide.protocol.native import CommittedRow

Reply: TypeAlias = Any
"""Stands for a request that is to be answered. Decisions hand it around and never look into it."""

Then: TypeAlias = "Callable[[ErrorCode, Effects], None]"
"""Continues when records are committed (NONE) or failed; with new effects, of the time when it continues."""


class Job(NamedTuple):
    """Long work: `steps` are taken a slice at a time, and then it continues, unless the coordinator was unloaded meanwhile."""

    steps: Iterator[object]
    go_on: Callable[[Effects], None]


class Work(NamedTuple):
    """Work that has no steps: a worker does `call`, and it continues with the result or exception, as after a `Job`."""

    call: Callable[[], Any]
    go_on: Callable[[Any, Effects], None]


class Promise(msgspec.Struct):
    """Continues with an answer, of which most are no more than that: what they say was known before."""

    reply: Reply
    response: Any
    failed: Callable[[ErrorCode], Any]

    def __call__(self, error: ErrorCode, effects: Effects) -> None:
        """Give it."""
        effects.answer(self.reply, self.outcome(error))

    def outcome(self, error: ErrorCode) -> Any:
        """The answer, whether the records are committed or could not be."""
        return self.response if error == ErrorCode.NONE else self.failed(append_error(error))


class Effects:
    """Filled by one decision at one time, and carried out as a whole: the records first, then what is to be answered at once.

    `then` continues when all of the records are committed, in the order in which it was asked for; where there are none, when all up to
    `barrier` are, which is at once without one.
    """

    __slots__ = ("answers", "barrier", "changes", "jobs", "now_ms", "producer", "records", "then", "wall_ms", "work")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        """`now_ms` is monotonic, for deadlines; `wall_ms` is what records say."""
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.records: list[CoordinatorRecord] = []
        self.changes: list[Any] = []
        """What the records say, in their order: one for each, but for `OffsetCommits`, which are several."""
        self.producer: tuple[ProducerId, ProducerEpoch] | None = None
        """In whose transaction the records are."""
        self.barrier: Offset = UNKNOWN_OFFSET
        """The answer relies on the records up to this one."""
        self.answers: list[tuple[Reply, Any]] = []
        self.then: list[Then] = []
        self.jobs: list[Job] = []
        self.work: list[Work] = []

    def keep_offset(self, group: str, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        """Ask for the record of an offset, or with None for that which takes it back."""
        self.records.append(encode_offset_commit(group, topic, partition, value))
        self.changes.append(OffsetCommit(OffsetCommitKey(group=group, topic=topic, partition=partition), value))

    def keep_offsets(
        self, group: str, topic: str, values: list[tuple[int, OffsetCommitValue]], *, topic_id: TopicId
    ) -> None:
        """Ask for the records of offsets in one topic, by partition, that were committed now and have this topic id."""
        if values:
            self.records += OffsetRecords(group, topic, commit_timestamp=self.wall_ms, topic_id=topic_id).encode_all(
                values
            )
            self.changes.append(OffsetCommits(group, topic, values))

    def keep_plain_offsets(
        self, group: str, topic: str, rows: Sequence[CommittedRow], *, topic_id: TopicId, encode: Callable[..., Any]
    ) -> None:
        """As `keep_offsets`, of at least one, without metadata; `encode` is the compiled form of `OffsetRecords.encode_all`."""
        records, change = plain_commits(group, topic, rows, wall_ms=self.wall_ms, topic_id=topic_id, encode=encode)
        self.records += records
        self.changes.append(change)

    def keep_group(self, group: str, value: GroupMetadataValue | None) -> None:
        """Ask for the record of a group, or with None for that which takes it back."""
        self.records.append(encode_group_metadata(group, value))
        self.changes.append(GroupMetadata(group, value))

    def keep_change(self, change: ConsumerGroupChange) -> None:
        """Ask for a record about a group of KIP-848."""
        self.records.append(encode_change(change))
        self.changes.append(change)

    def keep_encoded(self, change: ConsumerGroupChange, record: CoordinatorRecord) -> None:
        """As `keep_change`, of what was encoded before."""
        self.records.append(record)
        self.changes.append(change)

    def answer(self, reply: Reply, response: Any) -> None:
        """Answer a request now, without waiting for any record."""
        self.answers.append((reply, response))

    def answer_when_committed(self, reply: Reply, response: Any, failed: Callable[[ErrorCode], Any]) -> None:
        """Answer a request when the records are committed; `failed` makes the answer for when they can't be."""
        self.then.append(Promise(reply, response, failed))


def plain_commits(
    group: str, topic: str, rows: Sequence[CommittedRow], *, wall_ms: int, topic_id: TopicId, encode: Callable[..., Any]
) -> tuple[list[CoordinatorRecord], OffsetCommits]:
    """The records of offsets without metadata that are committed now, and what they say: see `Effects.keep_plain_offsets`."""
    common = OffsetRecords(group, topic, commit_timestamp=wall_ms, topic_id=topic_id)
    value = OffsetCommitValue
    values = [
        (
            number,
            value(offset=offset, leader_epoch=leader_epoch, metadata="", commit_timestamp=wall_ms, topic_id=topic_id),
        )
        for number, offset, leader_epoch in rows
    ]
    return encode(common.key_start, common.value_end, rows), OffsetCommits(group, topic, values)


def append_error(error: ErrorCode) -> ErrorCode:
    """The error for a member when a record could not be kept.

    Source: `GroupMetadataManager.appendGroupMetadataErrorToResponseError`.
    Unlike there, what is too large is called so instead of UNKNOWN_SERVER_ERROR.
    """
    if error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_LEADER_EPOCH):
        return ErrorCode.NOT_COORDINATOR
    if error == ErrorCode.RECORD_LIST_TOO_LARGE:
        return ErrorCode.MESSAGE_TOO_LARGE
    return error

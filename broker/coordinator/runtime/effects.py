"""The effects of a coordinator's decision: records to append, answers to send, and the time of the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.consumer_group_records import ConsumerGroupChange, encode_change
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.group_records import (
    GroupMetadata,
    GroupMetadataValue,
    OffsetCommit,
    OffsetCommitKey,
    OffsetCommits,
    OffsetCommitValue,
    encode_group_metadata,
    encode_offset_commit,
    encode_offset_commits,
)
from lowtide.protocol.share_group_records import ShareGroupChange, encode_share_change
from lowtide.protocol.streams_group_records import StreamsGroupChange, encode_streams_change
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, ProducerEpoch, ProducerId

_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
}

Reply: TypeAlias = Any
"""Stands for a request that is to be answered. Decisions pass it on and never use it."""

Then: TypeAlias = "Callable[[ErrorCode, Effects], None]"
"""Called when records are committed (NONE) or failed, with new effects of that time."""


class Job(NamedTuple):
    """Long work: `steps` are taken in slices, then `on_done` is called unless the shard was unloaded."""

    steps: Iterator[object]
    on_done: Callable[[Effects], None]


class WorkerCall(NamedTuple):
    """Work without steps: a worker runs `call`, and then `on_done` gets the result or the exception."""

    call: Callable[[], Any]
    on_done: Callable[[Any, Effects], None]


class Promise(msgspec.Struct):
    """An answer that is known before the records are committed."""

    reply: Reply
    response: Any
    failed: Callable[[ErrorCode], Any]

    def __call__(self, error: ErrorCode, effects: Effects) -> None:
        """Sends the answer."""
        effects.answer(self.reply, self.outcome(error))

    def outcome(self, error: ErrorCode) -> Any:
        """Returns the answer for the outcome of the commit."""
        return self.response if error == NONE else self.failed(append_error(error))


class Effects(msgspec.Struct, eq=False):
    """Filled by one decision and carried out as a whole: first the records, then the immediate answers.

    `then` runs in order when all records are committed or, without records, when everything up to `barrier` is.
    """

    now_ms: int
    """Monotonic, for deadlines."""
    wall_ms: int
    """The time in records."""
    records: list[CoordinatorRecord] = []
    changes: list[Any] = []
    """The content of the records, in order: one for each record, but `OffsetCommits` for several."""
    producer: tuple[ProducerId, ProducerEpoch] | None = None
    """The producer whose transaction the records are in."""
    barrier: Offset = UNKNOWN_OFFSET
    """The answers depend on the records up to this one."""
    answers: list[tuple[Reply, Any]] = []
    then: list[Then] = []
    jobs: list[Job] = []
    work: list[WorkerCall] = []

    def keep_offset(self, group: str, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        """Requests the record of an offset; with None, for its tombstone."""
        self.records.append(encode_offset_commit(group, topic, partition, value))
        self.changes.append(OffsetCommit(OffsetCommitKey(group=group, topic=topic, partition=partition), value))

    def keep_offsets(self, commits: OffsetCommits) -> None:
        """Requests the records of offsets of one commit, as `encode_offset_commits` takes them."""
        self.records += encode_offset_commits(commits.group, commits.topic, commits.values)
        self.changes.append(commits)

    def keep_group(self, group: str, value: GroupMetadataValue | None) -> None:
        """Requests the record of a classic group; with None, for its tombstone."""
        self.records.append(encode_group_metadata(group, value))
        self.changes.append(GroupMetadata(group, value))

    def keep_change(self, change: ConsumerGroupChange | ShareGroupChange | StreamsGroupChange) -> None:
        """Requests a record about a consumer group, a share group or a streams group."""
        if isinstance(change, ConsumerGroupChange):
            self.keep_encoded(change, encode_change(change))
        elif isinstance(change, ShareGroupChange):
            self.keep_encoded(change, encode_share_change(change))
        else:
            self.keep_encoded(change, encode_streams_change(change))

    def keep_encoded(
        self, change: ConsumerGroupChange | ShareGroupChange | StreamsGroupChange, record: CoordinatorRecord
    ) -> None:
        """Requests a record that is encoded already."""
        self.records.append(record)
        self.changes.append(change)

    def answer(self, reply: Reply, response: Any) -> None:
        """Answers a request at once, without waiting for any record."""
        self.answers.append((reply, response))

    def answer_when_committed(self, reply: Reply, response: Any, failed: Callable[[ErrorCode], Any]) -> None:
        """Answers a request when the records are committed. `failed` makes the answer if they can't be."""
        self.then.append(Promise(reply, response, failed))


def append_error(error: ErrorCode) -> ErrorCode:
    """Returns the error for a client whose record could not be appended.

    Source: `GroupMetadataManager.appendGroupMetadataErrorToResponseError`. Unlike there, a record that is too large is
    MESSAGE_TOO_LARGE instead of UNKNOWN_SERVER_ERROR.
    """
    return _APPEND_ERRORS.get(error, error)

"""What can be deleted, what came of it, and how a delete can fail: the values of `delete_records`.

A delete goes to an offset, exclusive: the first record that stays. `Timestamp` and `Committed` stand for offsets that
are looked up.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from lowtide.admin.arguments import by_partition
from lowtide.admin.errors import AdminError, UnsupportedVersionError
from lowtide.admin.offsets import Timestamp
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, BrokerId, Offset, TopicId, TopicPartition

TO_HIGH_WATERMARK: Final = -1
"""In place of an offset: everything that is committed when the call begins."""

OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """The smallest offset that these groups have committed: everything that all of them have consumed goes.

    A share group (KIP-932) counts with the start of its share partition: what lies before is done with.
    """

    groups: tuple[str, ...]

    def __init__(self, groups: str | Iterable[str]) -> None:
        """One group, or several. Errors: ValueError for none, or for an empty name."""
        names = tuple(dict.fromkeys([groups] if isinstance(groups, str) else groups))
        if not names or not all(names):
            message = f"Committed({groups!r}): at least one group has to be named"
            raise ValueError(message)
        object.__setattr__(self, "groups", names)


DeleteTarget: TypeAlias = Offset | Timestamp | Committed
"""Where a delete ends, exclusive. As an offset it is 0 or more, or `TO_HIGH_WATERMARK`."""


class DeletedRecords(NamedTuple):
    """A delete that is done. Both offsets are first readable positions, and -1 where the broker doesn't tell."""

    low_watermark: Offset
    """The smallest log start offset of all live replicas, when the leader answered. After an ordinary delete at least what was asked
    for; after one of the leader alone it may be behind."""
    leader_log_start_offset: Offset = UNKNOWN_OFFSET
    """The leader's own, -1 from brokers without version 3 of DeleteRecords (KIP-1343)."""


class ErasedRecords(DeletedRecords):
    """A delete that is done at every live replica, and which brokers have erased the records, too (docs/erasure.md)."""

    erased_by: tuple[BrokerId, ...] = ()
    """No file of these has a record below the low watermark."""
    not_erased_by: Mapping[BrokerId, str] = MappingProxyType({})
    """Replicas' brokers of which that isn't known, each with a clause that says why."""

    @classmethod
    def of(
        cls, deleted: DeletedRecords, erased_by: tuple[BrokerId, ...], not_erased_by: Mapping[BrokerId, str]
    ) -> ErasedRecords:
        """That delete, and what became of its records."""
        made = cls(*deleted)
        made.erased_by, made.not_erased_by = erased_by, dict(not_erased_by)
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, erased_by={self.erased_by}, not_erased_by={dict(self.not_erased_by)})"


class DeleteStage(Enum):
    """How far a delete had come when it failed."""

    RESOLVING = "finding the offset"
    """Nothing was sent: -1, a time or groups didn't lead to an offset."""
    FINDING_LEADER = "finding the leader"
    """Nothing is under way: no leader was found, or it isn't the topic any more that was meant."""
    SENDING = "sending"
    """Nothing is under way: the leader couldn't be reached, or doesn't speak the version."""
    WAITING = "waiting for the answer"
    """Sent, and the time ended, or the connection: `leader_done` says what is known."""
    ANSWERED = "answered by the leader"
    """The leader refused; `code` says why."""


class DeleteRecordsError(AdminError):
    """A delete that isn't known to be done, for one partition."""

    def __init__(
        self, partition: TopicPartition, stage: DeleteStage, reason: str, facts: DeleteFacts | None = None
    ) -> None:
        """`reason` is a clause without a full stop."""
        self.partition = partition
        self.stage = stage
        self.reason = reason
        self.facts = facts or DeleteFacts()
        to = "" if self.facts.offset is None else f" up to {self.facts.offset}"
        super().__init__(f"{partition}: can't delete{to}: {stage.value}: {reason}{_leaders_part(self.facts)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.partition, self.stage, self.reason, self.facts))

    @property
    def code(self) -> int | None:
        """The error code that a broker answered last, if any; UNSUPPORTED_VERSION for what wasn't sent, since it wouldn't be understood."""
        return self.facts.code

    @property
    def leader_done(self) -> bool | None:
        """Whether the leader has deleted.

        True: its log start has reached the offset, so the records are gone there, and their replicas will follow.
        False: it hasn't, and no request of this call is under way any more. None: not known; the delete may still
        happen.
        """
        return self.facts.leader_done


class DeleteFacts(NamedTuple):
    """What is known of a delete that failed."""

    offset: Offset | None = None
    """Up to where, exclusive, once that was known."""
    code: int | None = None
    leader_done: bool | None = False
    low_watermark: Offset = UNKNOWN_OFFSET
    leader_log_start_offset: Offset = UNKNOWN_OFFSET


class LeaderOnlyUnsupportedError(DeleteRecordsError, UnsupportedVersionError):
    """The leader doesn't know deletes of the leader alone.

    Nothing was sent: an ordinary delete would promise something else.
    """


class EraseUnsupportedError(DeleteRecordsError, UnsupportedVersionError):
    """A broker with a replica can't erase. Nothing was deleted: a delete alone would promise something else."""


DeleteResult: TypeAlias = DeletedRecords | DeleteRecordsError


def _leaders_part(facts: DeleteFacts) -> str:
    if facts.leader_done is None:
        return "; whether the leader has deleted isn't known"
    if facts.leader_done:
        return f"; the leader has deleted, the replicas' low watermark is {facts.low_watermark}"
    return ""


def checked_targets(targets: Mapping[TopicPartition, DeleteTarget]) -> dict[TopicPartition, DeleteTarget]:
    """The targets; numbers of numpy are numbers, too.

    Errors: ValueError for what can't be meant, before anything is sent.
    """
    found: dict[TopicPartition, DeleteTarget] = {}
    for partition, target in by_partition(targets, "an offset, Timestamp or Committed").items():
        if isinstance(target, Timestamp | Committed):
            found[partition] = target
            continue
        try:
            offset = None if isinstance(target, bool) else operator.index(target)
        except TypeError:
            offset = None
        if offset is None or not TO_HIGH_WATERMARK <= offset <= OFFSET_MAX:
            message = f"{partition}: {target!r} is no offset: allowed are 0 and more, -1 for the high watermark, Timestamp and Committed"
            raise ValueError(message)
        found[partition] = offset
    return found


def check_topic_ids(topic_ids: Mapping[str, TopicId]) -> None:
    """Errors: ValueError for what is no id: `TopicDescription.topic_id` is one, its text isn't."""
    for topic, topic_id in topic_ids.items():
        if not isinstance(topic_id, bytes) or len(topic_id) != len(ZERO_TOPIC_ID):
            message = f"{topic}: {topic_id!r} is no topic id: allowed is what TopicDescription.topic_id has, {len(ZERO_TOPIC_ID)} bytes"
            raise ValueError(message)

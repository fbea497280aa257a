"""The targets, results and errors of `delete_records`.

A delete ends at an offset, exclusive: the first record that stays. `Timestamp` and `Committed` are resolved to offsets.
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
"""Stands for the high watermark at the call's beginning."""

OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """The smallest offset that these groups have committed: records that all of them have consumed are deleted.

    For a share group (KIP-932) it is the start offset of the share partition.
    """

    groups: tuple[str, ...]

    def __init__(self, groups: str | Iterable[str]) -> None:
        """Takes one group or several. Errors: ValueError for none, or for an empty name."""
        names = tuple(dict.fromkeys([groups] if isinstance(groups, str) else groups))
        if not names or not all(names):
            raise ValueError(f"Committed({groups!r}): give at least one group, and no empty names")
        object.__setattr__(self, "groups", names)


DeleteTarget: TypeAlias = Offset | Timestamp | Committed
"""Where a delete ends, exclusive. An offset is 0 or more, or `TO_HIGH_WATERMARK`."""


class DeletedRecords(NamedTuple):
    """A finished delete. Both offsets are first readable offsets, or -1 if the broker does not return them."""

    low_watermark: Offset
    """The smallest log start offset of all live replicas when the leader answered: at least the requested offset,
    except after a delete with `leader_only`."""
    leader_log_start_offset: Offset = UNKNOWN_OFFSET
    """The leader's own log start; -1 from brokers without version 3 of DeleteRecords (KIP-1343)."""


class ErasedRecords(DeletedRecords):
    """A finished delete, with the brokers that have erased the records from their files (docs/erasure.md)."""

    erased_by: tuple[BrokerId, ...] = ()
    """No file of these brokers has a record below the low watermark."""
    not_erased_by: Mapping[BrokerId, str] = MappingProxyType({})
    """The other brokers with a replica, each with a reason."""

    @classmethod
    def of(
        cls, deleted: DeletedRecords, erased_by: tuple[BrokerId, ...], not_erased_by: Mapping[BrokerId, str]
    ) -> ErasedRecords:
        """Adds the results of erasing to a delete."""
        made = cls(*deleted)
        made.erased_by, made.not_erased_by = erased_by, dict(not_erased_by)
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, erased_by={self.erased_by}, not_erased_by={dict(self.not_erased_by)})"


class DeleteStage(Enum):
    """The stage at which a delete failed."""

    RESOLVING = "finding the offset"
    """Nothing was sent: the target could not be resolved to an offset."""
    FINDING_LEADER = "finding the leader"
    """Nothing is in progress: no leader was found, or the topic was created again."""
    SENDING = "sending"
    """Nothing is in progress: the leader could not be reached, or does not support the version."""
    WAITING = "waiting for the answer"
    """The request was sent, and the time or the connection ended. See `leader_done`."""
    ANSWERED = "answered by the leader"
    """The leader refused the delete, with `code`."""


class DeleteRecordsError(AdminError):
    """A delete of one partition that failed, or whose outcome is unknown."""

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
        """The last error code from a broker, if any; UNSUPPORTED_VERSION if the broker lacks the request's version."""
        return self.facts.code

    @property
    def leader_done(self) -> bool | None:
        """Whether the leader has deleted the records.

        True: its log start has reached the offset, and the followers will follow. False: it has not, and no request of
        this call is in progress. None: unknown; the delete may still happen.
        """
        return self.facts.leader_done


class DeleteFacts(NamedTuple):
    """The known facts of a failed delete."""

    offset: Offset | None = None
    """The target offset, exclusive, once it was resolved."""
    code: int | None = None
    leader_done: bool | None = False
    low_watermark: Offset = UNKNOWN_OFFSET
    leader_log_start_offset: Offset = UNKNOWN_OFFSET


class LeaderOnlyUnsupportedError(DeleteRecordsError, UnsupportedVersionError):
    """The leader does not support `leader_only`. Nothing was sent: an ordinary delete has another guarantee."""


class EraseUnsupportedError(DeleteRecordsError, UnsupportedVersionError):
    """A broker with a replica does not support erasing. Nothing was deleted."""


DeleteResult: TypeAlias = DeletedRecords | DeleteRecordsError


def _leaders_part(facts: DeleteFacts) -> str:
    if facts.leader_done is None:
        return "; whether the leader has deleted is unknown"
    if facts.leader_done:
        return f"; the leader has deleted, the replicas' low watermark is {facts.low_watermark}"
    return ""


def checked_targets(targets: Mapping[TopicPartition, DeleteTarget]) -> dict[TopicPartition, DeleteTarget]:
    """Returns the targets, with integers of other libraries as int. Errors: ValueError for an invalid target."""
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
            allowed = "an offset from 0 on, -1 for the high watermark, a Timestamp or Committed"
            raise ValueError(f"{partition}: {target!r} is not a target: it must be {allowed}")
        found[partition] = offset
    return found


def check_topic_ids(topic_ids: Mapping[str, TopicId]) -> None:
    """Checks that each id is 16 bytes, as `TopicDescription.topic_id`. Errors: ValueError, also for an id's text."""
    for topic, topic_id in topic_ids.items():
        if not isinstance(topic_id, bytes) or len(topic_id) != len(ZERO_TOPIC_ID):
            allowed = f"{len(ZERO_TOPIC_ID)} bytes, as in TopicDescription.topic_id"
            raise ValueError(f"{topic}: {topic_id!r} is not a topic id: it must be {allowed}")

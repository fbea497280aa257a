"""Limits how many groups and offsets clients may make a broker keep.

A group costs its clients one small request and costs the broker some kilobytes, for seven days
(`offsets.retention.minutes`) if it has committed offsets. So the number of groups, the rate of new groups, and the size
of their offsets are limited.

| limit | key | above it |
|---|---|---|
| groups of a broker | `lowtide.groups.max` | GROUP_MAX_SIZE_REACHED for joins, POLICY_VIOLATION for commits |
| new groups in a second | `lowtide.groups.created.per.second` | COORDINATOR_LOAD_IN_PROGRESS: clients retry |
| offsets | `lowtide.offsets.max` | INVALID_COMMIT_OFFSET_SIZE, for single partitions |
| metadata of all offsets | `lowtide.offsets.metadata.bytes.max` | OFFSET_METADATA_TOO_LARGE, for single partitions |

What is loaded from the log counts but is never refused. A long id counts as several groups (`CountedIds`). Kafka has
none of these limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lowtide.broker.token_bucket import TokenBucket
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.broker.coordinator.group_settings import GroupSettings
    from lowtide.protocol.group_records import OffsetCommitValue

GROUPS_GONE_MIN: Final = 1_000
"""Hashes of group ids are forgotten when this many groups, and half of all, are gone."""


def _none() -> int:
    return 0


class GroupAdmission:
    """What all groups of a broker share: their number, and the size of their offsets."""

    __slots__ = (
        "_bucket",
        "_count_most",
        "count_groups",
        "metadata_bytes",
        "offset_count",
        "refused_count",
        "settings",
    )

    def __init__(self, settings: GroupSettings, now_ms: int = 0) -> None:
        self.settings = settings
        self.count_groups: Callable[[], int] = _none
        self.offset_count = 0
        self.metadata_bytes = 0
        """Characters of metadata."""
        self.refused_count = 0
        """Refused groups and offsets, for the log."""
        self._count_most = 0
        self._bucket = TokenBucket(now_ms, settings.groups_created_per_second)

    def check_new_group(self, now_ms: int) -> ErrorCode:
        """Checks whether another group may be created, and counts it.

        Errors: GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self.count_groups() >= self.settings.groups_max:
            self.refused_count += 1
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self._bucket.take(1, now_ms, self.settings.groups_created_per_second) > 0:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def check_new_group_of_offsets(self, now_ms: int) -> ErrorCode:
        """Checks a new group as `check_new_group` does, but returns POLICY_VIOLATION if there are too many."""
        error = self.check_new_group(now_ms)
        return ErrorCode.POLICY_VIOLATION if error == ErrorCode.GROUP_MAX_SIZE_REACHED else error

    def have_most_gone(self) -> bool:
        """Returns whether most groups have gone since this last returned True. Called about once a second."""
        count = self.count_groups()
        self._count_most = max(self._count_most, count)
        if self._count_most - count < max(GROUPS_GONE_MIN, count):
            return False
        self._count_most = count
        return True

    def has_room_for(self, count: int) -> bool:
        """Returns whether `count` offsets without metadata may be added. If not, `check_offset` decides for each."""
        return self.offset_count + count <= self.settings.offsets_max

    def check_offset(self, metadata: str, kept_count: int, kept_bytes: int) -> ErrorCode:
        """Checks whether another offset may be kept, after `kept_count` offsets with `kept_bytes` of the same request.

        The caller checks first whether the offset replaces a known one, which is always allowed. Errors:
        INVALID_COMMIT_OFFSET_SIZE, OFFSET_METADATA_TOO_LARGE.
        """
        if self.offset_count + kept_count >= self.settings.offsets_max:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if metadata and self.metadata_bytes + kept_bytes + len(metadata) > self.settings.offsets_metadata_bytes_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def forget(self, values: Iterable[OffsetCommitValue]) -> None:
        """Stops counting these offsets."""
        for value in values:
            self.offset_count -= 1
            self.metadata_bytes -= len(value.metadata)

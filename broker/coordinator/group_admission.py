"""How many groups and offsets clients may have a broker remember.

A group costs its clients one small request and the broker some kilobytes, for seven days (`offsets.retention.minutes`)
where it has committed something. So groups are bounded, in all and in a second, and so is what their offsets take.

| limit | key | above it |
|---|---|---|
| groups that a broker coordinates | `lowtide.groups.max` | GROUP_MAX_SIZE_REACHED to who joins, POLICY_VIOLATION to who commits |
| groups that begin in a second | `lowtide.groups.created.per.second` | COORDINATOR_LOAD_IN_PROGRESS: clients try again |
| offsets that are remembered | `lowtide.offsets.max` | INVALID_COMMIT_OFFSET_SIZE, of single partitions |
| the metadata of all offsets | `lowtide.offsets.metadata.bytes.max` | OFFSET_METADATA_TOO_LARGE, of single partitions |

What is loaded from the log is never refused, and counts. Kafka has none of these limits.
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
"""When so many groups are gone, and half of all, what is remembered of their ids may go, too."""


def _none() -> int:
    return 0


class GroupAdmission:
    """What all groups of a broker have in common: how many they are, and what their offsets take."""

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
        """How many groups there are."""
        self.offset_count = 0
        self.metadata_bytes = 0
        """Characters of metadata."""
        self.refused_count = 0
        """Groups and offsets that were refused, for the log."""
        self._count_most = 0
        self._bucket = TokenBucket(now_ms, settings.groups_created_per_second)

    def check_new_group(self, now_ms: int) -> ErrorCode:
        """Whether another group may begin; it is counted then.

        Errors: GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self.count_groups() >= self.settings.groups_max:
            self.refused_count += 1
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self._bucket.take(1, now_ms, self.settings.groups_created_per_second) > 0:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def check_new_group_of_offsets(self, now_ms: int) -> ErrorCode:
        """As `check_new_group`, for a commit: POLICY_VIOLATION where there are too many."""
        error = self.check_new_group(now_ms)
        return ErrorCode.POLICY_VIOLATION if error == ErrorCode.GROUP_MAX_SIZE_REACHED else error

    def have_most_gone(self) -> bool:
        """Whether most groups have gone since this was last so. To be asked about once a second."""
        count = self.count_groups()
        self._count_most = max(self._count_most, count)
        if self._count_most - count < max(GROUPS_GONE_MIN, count):
            return False
        self._count_most = count
        return True

    @property
    def offsets_left(self) -> int:
        """So many more offsets may be remembered; `check_offset` is only needed beyond."""
        return self.settings.offsets_max - self.offset_count

    @property
    def metadata_bytes_left(self) -> int:
        """As `offsets_left`, of their metadata; less than 0 where the limit was lowered."""
        return self.settings.offsets_metadata_bytes_max - self.metadata_bytes

    def has_room_for(self, count: int) -> bool:
        """Whether so many more offsets without metadata may be remembered, so that none needs `check_offset`."""
        return count <= self.offsets_left and self.metadata_bytes_left >= 0

    def check_offset(self, metadata: str, kept_count: int, kept_bytes: int) -> ErrorCode:
        """Whether another offset may be remembered, besides those that the request has had let in, `kept_count` with `kept_bytes`.

        Whether it takes the place of another one, and so may always be, is for the caller to know.
        Errors: INVALID_COMMIT_OFFSET_SIZE, OFFSET_METADATA_TOO_LARGE.
        """
        if self.offset_count + kept_count >= self.settings.offsets_max:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if metadata and self.metadata_bytes + kept_bytes + len(metadata) > self.settings.offsets_metadata_bytes_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def forget(self, values: Iterable[OffsetCommitValue]) -> None:
        """These offsets are gone."""
        for value in values:
            self.offset_count -= 1
            self.metadata_bytes -= len(value.metadata)

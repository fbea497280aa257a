"""The lag of groups: the readable records between the committed offset and the high watermark.

A group that has committed below the log start continues at the log start, so deleted records are not counted. The lag
of a share group (KIP-932) comes from its coordinator, since records behind its start offset may be done already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.groups import SHARE
from lowtide.admin.offsets import ends_of
from lowtide.admin.share_groups import ShareOffset
from lowtide.protocol.types import Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A group's lag in one partition. Unknown offsets are None; `log_end` is the high watermark."""

    partition: TopicPartition
    committed: Offset
    log_start: Offset | None
    log_end: Offset | None
    counted: int | None = None
    """The lag that the coordinator of a share group has counted."""

    @property
    def records(self) -> int | None:
        """How many offsets the group has not read."""
        if self.counted is not None or self.log_end is None:
            return self.counted
        return max(0, self.log_end - max(self.committed, self.log_start or 0))


async def find_lags(
    client: AdminClient,
    kinds: Mapping[str, str],
    partitions: Collection[TopicPartition] | None = None,
    *,
    timeout: float | None = None,
) -> tuple[dict[str, list[Lag]], dict[Any, AdminError]]:
    """Returns the lags of each group's partitions, sorted, and errors. `kinds` has the kind of each group.

    `partitions` limits the partitions. `committed` of a share group is its start offset. Errors: AdminError.
    """
    shares = [name for name, kind in kinds.items() if kind == SHARE]
    others = [name for name, kind in kinds.items() if kind != SHARE]
    answers: dict[str, Mapping[TopicPartition, Any] | AdminError] = {}
    if others:
        answers |= await client.list_group_offsets(dict.fromkeys(others, partitions), timeout=timeout)
    if shares:
        answers |= await client.list_share_group_offsets(shares, timeout=timeout)
    wanted = None if partitions is None else frozenset(partitions)
    failed: dict[Any, AdminError] = {name: each for name, each in answers.items() if isinstance(each, AdminError)}
    committed: dict[str, dict[TopicPartition, CommittedOffset | ShareOffset]] = {}
    for name, each in answers.items():
        if isinstance(each, AdminError):
            continue
        rows = {key: row for key, row in each.items() if wanted is None or key in wanted}
        committed[name] = {key: row for key, row in rows.items() if not isinstance(row, AdminError)}
        failed |= {f"{name}, {key}": row for key, row in rows.items() if isinstance(row, AdminError)}
    if not committed:
        return {}, failed
    starts, ends = await ends_of(client, sorted({key for rows in committed.values() for key in rows}), timeout=timeout)
    lags = {
        name: [
            Lag(
                partition=key,
                committed=row.offset,
                log_start=starts.get(key),
                log_end=ends.get(key),
                counted=row.lag if isinstance(row, ShareOffset) else None,
            )
            for key, row in sorted(rows.items())
        ]
        for name, rows in committed.items()
    }
    return lags, failed

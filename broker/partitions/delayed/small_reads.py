"""What a consumer reads at once of few partitions, which all are led here, at offsets that are there: the quick form of `FetchReader.read`.

None, and nothing is changed, where anything is unusual: then that decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.broker.partitions.fetch_session import FetchSession, FetchTarget
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.protocol.native import AnsweredRow
    from lowtide.protocol.native import FetchedRow as Row
    from lowtide.storage.log.log import FileSlice

PARTITIONS_MAX = 64
"""The compiled module writes answers of so many."""

Wanted = tuple["FetchTarget | None", "Row"]
"""What the session has of a partition, and how it is asked for."""

Read = tuple["FetchTarget | None", Partition, "Row", "AnsweredRow", "FileSlice | None"]
"""What the session has of a partition, where it is, how it was asked for, what is answered, and with which records."""


def wanted_of(session: FetchSession | None, rows: Sequence[Row]) -> Sequence[Wanted] | None:
    """What is to be visited, in its order, with what the request says of it; None where the session grows, or that is much."""
    if len(rows) == 1:  # Most requests name one partition, and no other has changed.
        target = None if session is None else session.targets.get((rows[0][0], rows[0][1]))
        if session is None or (target is not None and session.changed.keys() <= {target}):
            return ((target, rows[0]),)
    named = {(row[0], row[1]): row for row in rows}
    if session is None:
        return [(None, row) for row in rows] if len(named) == len(rows) else None  # Of two mentions the last counts.
    wanted: dict[FetchTarget, Row | None] = dict.fromkeys(session.changed)
    for key, row in named.items():
        target = session.targets.get(key)
        if target is None:
            return None
        wanted[target] = row
    if len(wanted) > PARTITIONS_MAX:
        return None
    return [(target, _row_of(target) if row is None else row) for target, row in wanted.items()]


def _row_of(target: FetchTarget) -> Row:
    return (
        target.topic if target.topic_id == ZERO_TOPIC_ID else target.topic_id,
        target.partition,
        target.current_leader_epoch,
        target.fetch_offset,
        target.last_fetched_epoch,
        target.log_start_offset,
        target.maximum_bytes,
    )


def read_wanted(
    replicas: ReplicaManager, wanted: Sequence[Wanted], version: int, left: int, *, committed: bool
) -> tuple[list[Read], int] | None:
    """Read all of them, up to `left` bytes; and how many there are. `committed`: up to the last stable offset."""
    image, total = replicas.image, 0
    names: Any = {} if image is None else image.topic_names  # By topic id.
    reads: list[Read] = []
    for target, row in wanted:
        topic, number, leader_epoch, offset, last_epoch, _, maximum_bytes = row
        partition = replicas.find(names.get(topic, "") if version >= TOPIC_IDS_SINCE else topic, number)  # type: ignore[arg-type]
        if (
            not isinstance(partition, Partition)
            or not partition.is_leader
            or (leader_epoch >= 0 and leader_epoch != partition.leader_epoch)
            or (last_epoch >= 0 and last_epoch != partition.leader_epoch)
        ):
            return None
        log = partition.log
        log_start = log.log_start_offset
        if not log_start <= offset <= log.log_end_offset:
            return None
        high_watermark = last_stable = log.high_watermark
        if log.transactions.any:
            last_stable = log.last_stable_offset
        end_offset, part, size = last_stable if committed else high_watermark, None, 0
        if offset < end_offset:
            limit = min(left, maximum_bytes)
            try:
                read = log.read(offset, limit, end_offset=end_offset, minimum_one_batch=total == 0, seeks_records=True)
                part = read.slice
                if read.error_code != ErrorCode.NONE or (
                    committed and part is not None and log.aborted_transactions(part, offset, end_offset)
                ):
                    return None
            except StorageError:
                return None
            if part is not None:
                size = part.size
                total += size
                left = left - size if size < left else 0
        reads.append((target, partition, row, (topic, number, high_watermark, last_stable, log_start, size), part))
    return reads, total


def news_of(session: FetchSession, reads: list[Read], *, committed: bool) -> list[Read]:
    """Those that the client gets: they have records, or other offsets than it knows. The session knows them then."""
    news: list[Read] = []
    changed: Any = session.changed
    changed |= {read[0]: None for read in reads}  # All of them, before any is put last.
    for read in reads:
        target, partition, row, (_, _, high_watermark, last_stable, log_start, size), _ = read
        assert target is not None
        target.ask(*row[2:])
        target.topic, target.traffic = partition.topic_partition.topic, partition.traffic
        if target.watched is not partition:
            target.watch(partition)
        target.at_end = row[3] >= (last_stable if committed else high_watermark)
        if size or high_watermark != target.told_high_watermark or log_start != target.told_log_start_offset:
            news.append(read)
            target.told_high_watermark, target.told_log_start_offset = high_watermark, log_start
        if size or target.at_end:
            del changed[target]
        if size:
            changed[target] = None  # The others come first next time.
    return news

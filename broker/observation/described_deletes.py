"""Waiting and recent deletes of records for operators.

Rows are built in steps, and only if the client can see them. Times are wall-clock times.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterable
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.partitions.deletes.delayed_delete import CLIENT_ID_KEPT, DeleteRequest, DeleteRow, RecentDeletes
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.messages.describe_deletes import (
    NOT_YET,
    AwaitedFollower,
    DeleteOrigin,
    FinishedDelete,
    WaitingDelete,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.replication.former_replicas import awaited_former
from lowtide.replication.leadership import NEVER_MS
from lowtide.replication.partition import Partition

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage

ROWS_A_STEP: Final = 16


class Viewer(msgspec.Struct, frozen=True):
    """The rights of a client: the topics whose deletes it can see, and whether it sees the senders of others."""

    may_describe: Callable[[str], bool]
    sees_all_origins: bool
    principal: KafkaPrincipal

    def origin(self, request: DeleteRequest) -> DeleteOrigin | None:
        """Returns the sender of a request, or None if it is hidden."""
        if not self.sees_all_origins and request.principal != self.principal:
            return None
        client_id = request.client_id if request.client_id is None else request.client_id[:CLIENT_ID_KEPT]
        return DeleteOrigin(
            principal=str(request.principal), client_address=request.client_address, client_id=client_id
        )


class Now(msgspec.Struct, frozen=True):
    """A time on both clocks."""

    monotonic_ms: int
    wall_ms: int

    def at(self, monotonic_ms: int) -> int:
        """Converts a monotonic time to wall-clock time; NOT_YET stays."""
        return NOT_YET if monotonic_ms == NOT_YET else self.wall_ms - (self.monotonic_ms - monotonic_ms)


def finished(
    recent: RecentDeletes, viewer: Viewer, *, after_number: int, rows_max: int
) -> Generator[None, None, list[FinishedDelete]]:
    """Returns recent deletes, newest first: those after a number, at most `rows_max`. In steps."""
    found: list[FinishedDelete] = []
    for request in list(recent):
        if request.last_number <= after_number:
            break
        then = Now(request.answered_ms, request.answered_at_ms)
        for number, row in zip(count(request.last_number, -1), reversed(request.rows), strict=False):
            if number <= after_number or len(found) >= rows_max:
                return found
            if viewer.may_describe(row.key.topic):
                found.append(_finished_row(request, row, then, number, viewer))
            if number % ROWS_A_STEP == 0:
                yield
    return found


def _finished_row(request: DeleteRequest, row: DeleteRow, then: Now, number: int, viewer: Viewer) -> FinishedDelete:
    return FinishedDelete(
        number=number,
        topic=row.key.topic,
        partition_index=row.key.partition,
        error_code=row.error_code,
        offset=row.offset,
        old_log_start_offset=row.old_log_start_offset,
        log_start_offset=row.log_start_offset,
        leader_only=request.leader_only,
        asked_at_ms=then.at(request.asked_ms),
        durable_at_ms=then.at(row.durable_ms),
        replicated_at_ms=then.at(row.replicated_ms),
        answered_at_ms=request.answered_at_ms,
        origin=viewer.origin(request),
    )


class WaitingRows(msgspec.Struct):
    """The oldest waiting rows, and the total number."""

    rows: list[WaitingDelete]
    count: int


def waiting(
    requests: Iterable[DeleteRequest], image: MetadataImage | None, viewer: Viewer, now: Now, rows_max: int
) -> Generator[None, None, WaitingRows]:
    """Returns waiting deletes, oldest first, at most `rows_max`. In steps."""
    oldest: list[tuple[int, int, DeleteRequest, DeleteRow]] = []
    order = count()
    total = 0
    for request in requests:
        for row in request.rows:
            if row.done or row.partition is None or not viewer.may_describe(row.key.topic):
                continue
            total += 1
            entry = (
                -request.asked_ms,
                -next(order),
                request,
                row,
            )  # The largest of a heap of the oldest is the youngest.
            if len(oldest) < rows_max:
                heapq.heappush(oldest, entry)
            elif rows_max:
                heapq.heappushpop(oldest, entry)
            if total % ROWS_A_STEP == 0:
                yield
    rows: list[WaitingDelete] = []
    for number, (_, _, request, row) in enumerate(sorted(oldest, reverse=True)):
        if row.partition is not None:
            rows.append(_waiting_row(request, row, row.partition, image, now, viewer))
        if number % ROWS_A_STEP == 0:
            yield
    return WaitingRows(rows, total)


def _waiting_row(
    request: DeleteRequest, row: DeleteRow, partition: Partition, image: MetadataImage | None, now: Now, viewer: Viewer
) -> WaitingDelete:
    low_watermark = partition.log.log_start_offset
    followers: Collection[AwaitedFollower] = ()
    if image is not None and not request.leader_only:
        low_watermark = partition.low_watermark(image, now.monotonic_ms)
        followers = awaited_followers(partition, row.offset, image, now.monotonic_ms)
    return WaitingDelete(
        topic=row.key.topic,
        partition_index=row.key.partition,
        offset=row.offset,
        log_start_offset=partition.log.log_start_offset,
        low_watermark=low_watermark,
        leader_only=request.leader_only,
        asked_at_ms=now.at(request.asked_ms),
        durable_at_ms=now.at(row.durable_ms),
        ends_at_ms=now.at(request.deadline_ms),
        followers=list(followers),
        origin=viewer.origin(request),
    )


def awaited_followers(partition: Partition, offset: Offset, image: MetadataImage, now_ms: int) -> list[AwaitedFollower]:
    """Returns the followers that a delete to `offset` waits for (rule DR3), by id, then removed replicas.

    A removed replica's reports do not count; its silence starts at its removal.
    """
    former = [
        AwaitedFollower(
            broker_id=broker_id, log_start_offset=UNKNOWN_OFFSET, is_in_sync=False, silent_ms=now_ms - each.since_ms
        )
        for broker_id, each in sorted(awaited_former(partition, image, now_ms).items())
    ]
    leadership = partition.leadership
    if leadership is None:
        return former
    found = []
    for broker_id, follower in sorted(leadership.followers.items()):
        is_member = broker_id in leadership.maximal_isr
        if not is_member and not leadership.is_live(broker_id, follower, image, now_ms):
            continue
        reported = leadership.reported_log_start(broker_id, follower, image, now_ms)
        if reported < offset:
            last_ms = follower.last_fetch_ms
            silent_ms = NOT_YET if last_ms == NEVER_MS else now_ms - last_ms
            found.append(
                AwaitedFollower(
                    broker_id=broker_id, log_start_offset=reported, is_in_sync=is_member, silent_ms=silent_ms
                )
            )
    return found + former

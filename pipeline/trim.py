"""Deleting what a query has durably consumed, behind its back: a thread that is given positions and trims topics to them.

Trimming is a best effort: a failure is a line in the log and is tried again with the next positions, which cover the missed
ones. Nothing here raises, and nothing waits for a slow replica, but for the last trim of a query that is ending.

Guards: only positions that were given are trimmed to, less the lag; where a group's position or the age of records is in doubt, nothing
is deleted; a topic of another id than the one meant is left alone (the id is checked at the leader, by `AdminClient.delete_records`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from lowtide.admin.deletion import DeletedRecords, DeleteRecordsError
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.offsets import ListedOffset, Timestamp
from lowtide.pipeline.ranges import Positions, QueryProgress
from lowtide.pipeline.trim_options import TrimOptions
from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.clock import Clock, SystemClock

log = logging.getLogger(__name__)

REPEAT_MS: Final = 60_000
"""The same warning isn't logged again sooner."""


class Admin(Protocol):
    """What is asked of `BlockingAdminClient`."""

    def delete_records(
        self,
        targets: Mapping[TopicPartition, Offset],
        *,
        leader_only: bool = ...,
        timeout: float | None = ...,
        topic_ids: Mapping[str, TopicId] | None = ...,
    ) -> Mapping[TopicPartition, DeletedRecords | DeleteRecordsError]: ...

    def list_offsets(
        self, places: Mapping[TopicPartition, Any], *, timeout: float | None = ...
    ) -> Mapping[TopicPartition, Any]: ...

    def list_group_offsets(self, groups: Any, *, timeout: float | None = ...) -> Mapping[str, Any]: ...

    def alter_group_offsets(
        self, group: str, committed: Mapping[TopicPartition, Any], *, timeout: float | None = ...
    ) -> Mapping[Any, Any]: ...

    def close(self) -> None: ...


class Trimmer:
    """Trims to what it is given, in a thread of its own that begins with the first `offer`."""

    def __init__(
        self,
        options: TrimOptions,
        make_admin: Callable[[], Admin],
        clock: Clock | None = None,
        find_ids: Callable[[Iterable[str]], Mapping[str, TopicId]] | None = None,
    ) -> None:
        """`find_ids` tells ids of topics that come without: those of their first trim are meant from then on."""
        self._options = options
        self._find_ids = find_ids
        self._ids: dict[str, TopicId] = {}
        self._make_admin = make_admin
        self._clock = clock or SystemClock()
        self._admin: Admin | None = None
        self._done: Positions = {}
        """Where each partition was trimmed to, as far as is known."""
        self._published: Positions = {}
        self._told: dict[str, int] = {}
        self._changed = threading.Condition()
        self._offered: QueryProgress | None = None
        self._busy = False
        self._in_a_hurry = False
        self._thread: threading.Thread | None = None

    def offer(self, consumed: QueryProgress) -> None:
        """What was consumed may go. Returns at once; only the last of several offers counts."""
        if not self._is_new(consumed.positions):
            return
        with self._changed:
            self._offered = consumed
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lowtide-trim", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _is_new(self, positions: Positions) -> bool:
        """Whether there may be work. With a lag there always may be: records grow older, and groups progress."""
        if self._options.trims and any(
            self._done.get(partition, 0) < offset for partition, offset in positions.items()
        ):
            return True
        return self._options.commit_group is not None and any(
            self._published.get(one) != offset for one, offset in positions.items()
        )

    def finish(self, timeout_ms: int) -> bool:
        """Wait until what was offered is done or has failed, whatever the interval. Whether it is."""
        with self._changed:
            self._in_a_hurry = True
            self._changed.notify_all()
            idle = self._changed.wait_for(lambda: self._offered is None and not self._busy, timeout_ms / 1000)
            self._in_a_hurry = False
            return idle

    def _run(self) -> None:
        """Trim to what was offered last, again and again, until the process ends."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._offered is not None)
                consumed, self._offered, self._busy = self._offered, None, True
            assert consumed is not None
            self.trim(consumed)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._in_a_hurry, self._options.interval_ms / 1000)

    # ------------------------------------------------------------------ one trim
    def trim(self, consumed: QueryProgress) -> None:
        """Trim now, in this thread. Never raises: what fails is logged."""
        try:
            if self._admin is None:
                self._admin = self._make_admin()
            admin = self._admin
            if self._options.commit_group is not None:
                self._publish(admin, self._options.commit_group, consumed.positions)
            if self._options.trims:
                self._delete(admin, consumed)
        except Exception as error:  # noqa: BLE001 a query must not end because its input can't be deleted
            self._tell(f"trimming failed and is tried again with the next batch: {error}")
            failed, self._admin = self._admin, None
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()

    def _publish(self, admin: Admin, group: str, positions: Positions) -> None:
        """Commit the positions in the name of a group."""
        changed = {
            partition: offset for partition, offset in positions.items() if self._published.get(partition) != offset
        }
        if not changed:
            return
        for partition, error in admin.alter_group_offsets(
            group, changed, timeout=self._options.timeout_ms / 1000
        ).items():
            if error is None:
                self._published[partition] = changed[partition]
            else:
                self._tell(f"the position of {partition} can't be committed for group {group}: {error}")

    def _delete(self, admin: Admin, consumed: QueryProgress) -> None:
        wanted = self._targets(admin, consumed.positions)
        if not wanted:
            return
        ids = self._meant(consumed, {partition.topic for partition in wanted})
        results = admin.delete_records(
            wanted, leader_only=self._options.leader_only, timeout=self._options.timeout_ms / 1000, topic_ids=ids
        )
        deleted = 0
        for partition, result in results.items():
            if isinstance(result, DeletedRecords):
                deleted += 1
            else:
                self._tell(f"not trimmed: {result}")
                if not result.leader_done:
                    continue
            self._done[partition] = wanted[partition]
        log.debug("trimmed %d of %d partitions", deleted, len(wanted))

    def _meant(self, consumed: QueryProgress, topics: set[str]) -> dict[str, TopicId]:
        """The ids of the topics, as far as they are known."""
        unknown = sorted(topic for topic in topics if topic not in consumed.topic_ids and topic not in self._ids)
        if unknown and self._find_ids is not None:
            self._ids |= self._find_ids(unknown)
        ids = self._ids | dict(consumed.topic_ids)
        return {topic: ids[topic] for topic in topics if topic in ids}

    def _targets(self, admin: Admin, positions: Positions) -> Positions:
        """Up to where to delete: less than the positions by the lag and by what groups have not consumed yet."""
        wanted = {partition: offset - self._options.lag_rows for partition, offset in positions.items()}
        wanted = {
            partition: offset for partition, offset in wanted.items() if offset > max(self._done.get(partition, 0), 0)
        }
        if wanted and self._options.lag_ms:
            wanted = self._older(admin, wanted)
        if wanted and self._options.groups:
            wanted = self._consumed_by_groups(admin, wanted)
        return {
            partition: offset for partition, offset in wanted.items() if offset > max(self._done.get(partition, 0), 0)
        }

    def _older(self, admin: Admin, wanted: Positions) -> Positions:
        """Not beyond the first record that is younger than the lag."""
        moment = Timestamp(self._clock.wall_ms() - self._options.lag_ms)
        answers = admin.list_offsets(dict.fromkeys(wanted, moment), timeout=self._options.timeout_ms / 1000)
        older: Positions = {}
        for partition, offset in wanted.items():
            answer = answers.get(partition)
            if isinstance(answer, ListedOffset):
                older[partition] = min(offset, answer.offset) if answer.offset >= 0 else offset
            else:
                self._tell(f"{partition} isn't trimmed: the age of its records isn't known: {answer}")
        return older

    def _consumed_by_groups(self, admin: Admin, wanted: Positions) -> Positions:
        """Not beyond what any of the groups has committed; nothing where one has committed nothing."""
        asked = dict.fromkeys(self._options.groups, tuple(wanted))
        answers = admin.list_group_offsets(asked, timeout=self._options.timeout_ms / 1000)
        for group in self._options.groups:
            answer = answers.get(group)
            if answer is None or isinstance(answer, AdminError):
                self._tell(f"nothing is trimmed: the offsets of group {group} aren't known: {answer}")
                return {}
            committed = {partition: one.offset for partition, one in answer.items() if isinstance(one, CommittedOffset)}
            for partition in [partition for partition in wanted if partition not in committed]:
                self._tell(f"{partition} isn't trimmed: group {group} has committed nothing there")
                del wanted[partition]
            wanted = {partition: min(offset, committed[partition]) for partition, offset in wanted.items()}
        return wanted

    def _tell(self, message: str) -> None:
        """A warning, unless the same was logged lately."""
        now_ms = self._clock.monotonic_ms()
        self._told = {text: told_ms for text, told_ms in self._told.items() if now_ms - told_ms < REPEAT_MS}
        if message not in self._told:
            self._told[message] = now_ms
            log.warning("%s", message)

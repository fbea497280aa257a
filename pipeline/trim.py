"""Deletes what a query has durably consumed, in a background thread that trims topics to the query's positions.

Trimming is a best effort. A failure is logged, and the next positions include the missed ones. Nothing here raises, and
only the last trim of a query that ends waits for a slow replica.

Guards: the thread trims only to positions that it gets, less the lag. It deletes nothing if a group's position or the
age of records is unknown. It does not trim a topic with another id than the one that the query read (see `topic_ids` of
`AdminClient.delete_records`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from lowtide.admin.deletion import DeletedRecords
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.offsets import ListedOffset, Timestamp
from lowtide.pipeline.ranges import Positions, QueryProgress
from lowtide.pipeline.trim_options import TrimOptions
from lowtide.protocol.types import TopicId
from lowtide.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from lowtide.admin.blocking import BlockingAdminClient

log = logging.getLogger(__name__)

REPEAT_MS: Final = 60_000
"""The same warning is logged once in this time."""


class Trimmer:
    """Trims topics to positions. Its thread starts with the first `offer`."""

    def __init__(
        self,
        options: TrimOptions,
        make_admin: Callable[[], BlockingAdminClient],
        clock: Clock | None = None,
        find_ids: Callable[[Iterable[str]], Mapping[str, TopicId]] | None = None,
    ) -> None:
        """`find_ids` returns the ids of topics. It is called once for each topic that `offer` gets without an id."""
        self._options = options
        self._find_ids = find_ids
        self._ids: dict[str, TopicId] = {}
        self._make_admin = make_admin
        self._clock = clock or SystemClock()
        self._admin: BlockingAdminClient | None = None
        self._done: Positions = {}
        """The offset that each partition was trimmed to, as far as it is known."""
        self._published: Positions = {}
        self._logged: dict[str, int] = {}
        self._changed = threading.Condition()
        self._offered: QueryProgress | None = None
        self._busy = False
        self._in_a_hurry = False
        self._thread: threading.Thread | None = None

    def offer(self, consumed: QueryProgress) -> None:
        """Passes positions to the thread, and returns at once. Only the last of several offers counts."""
        if not self._is_new(consumed.positions):
            return
        with self._changed:
            self._offered = consumed
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lowtide-trim", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _is_new(self, positions: Positions) -> bool:
        """Returns whether there may be work. With a lag there always may be: records age, and groups commit offsets."""
        if self._options.trims and any(
            self._done.get(partition, 0) < offset for partition, offset in positions.items()
        ):
            return True
        return self._options.commit_group is not None and any(
            self._published.get(one) != offset for one, offset in positions.items()
        )

    def finish(self, timeout_ms: int) -> bool:
        """Waits until all offers are done or have failed, without the interval. Returns False after `timeout_ms`."""
        with self._changed:
            self._in_a_hurry = True
            self._changed.notify_all()
            idle = self._changed.wait_for(lambda: self._offered is None and not self._busy, timeout_ms / 1000)
            self._in_a_hurry = False
            return idle

    def _run(self) -> None:
        """Trims to the last offer, in a loop, until the process ends."""
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
        """Trims now, in this thread. Never raises: a failure is logged."""
        try:
            if self._admin is None:
                self._admin = self._make_admin()
            admin = self._admin
            if self._options.commit_group is not None:
                self._publish(admin, self._options.commit_group, consumed.positions)
            if self._options.trims:
                self._delete(admin, consumed)
        except Exception as error:  # noqa: BLE001 a failed delete must not end the query
            self._warn(f"trimming failed and is tried again with the next batch: {error}")
            failed, self._admin = self._admin, None
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()

    def _publish(self, admin: BlockingAdminClient, group: str, positions: Positions) -> None:
        """Commits the positions as the offsets of a group."""
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
                self._warn(f"the position of {partition} cannot be committed for group {group}: {error}")

    def _delete(self, admin: BlockingAdminClient, consumed: QueryProgress) -> None:
        wanted = self._targets(admin, consumed.positions)
        if not wanted:
            return
        ids = self._known_ids(consumed, {partition.topic for partition in wanted})
        results = admin.delete_records(
            wanted, leader_only=self._options.leader_only, timeout=self._options.timeout_ms / 1000, topic_ids=ids
        )
        deleted = 0
        for partition, result in results.items():
            if isinstance(result, DeletedRecords):
                deleted += 1
            else:
                self._warn(f"not trimmed: {result}")
                if not result.leader_done:
                    continue
            self._done[partition] = wanted[partition]
        log.debug("trimmed %d of %d partitions", deleted, len(wanted))

    def _known_ids(self, consumed: QueryProgress, topics: set[str]) -> dict[str, TopicId]:
        """Returns the known ids of topics."""
        unknown = sorted(topic for topic in topics if topic not in consumed.topic_ids and topic not in self._ids)
        if unknown and self._find_ids is not None:
            self._ids |= self._find_ids(unknown)
        ids = self._ids | dict(consumed.topic_ids)
        return {topic: ids[topic] for topic in topics if topic in ids}

    def _targets(self, admin: BlockingAdminClient, positions: Positions) -> Positions:
        """Returns the offsets to delete to: the positions, limited by the lag and by the groups."""
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

    def _older(self, admin: BlockingAdminClient, wanted: Positions) -> Positions:
        """Limits the offsets to the first record that is younger than the lag."""
        moment = Timestamp(self._clock.wall_ms() - self._options.lag_ms)
        answers = admin.list_offsets(dict.fromkeys(wanted, moment), timeout=self._options.timeout_ms / 1000)
        older: Positions = {}
        for partition, offset in wanted.items():
            answer = answers.get(partition)
            if isinstance(answer, ListedOffset):
                older[partition] = min(offset, answer.offset) if answer.offset >= 0 else offset
            else:
                self._warn(f"{partition} is not trimmed: the age of its records is not known: {answer}")
        return older

    def _consumed_by_groups(self, admin: BlockingAdminClient, wanted: Positions) -> Positions:
        """Limits the offsets to what all groups have committed; drops partitions without a commit."""
        asked = dict.fromkeys(self._options.groups, tuple(wanted))
        answers = admin.list_group_offsets(asked, timeout=self._options.timeout_ms / 1000)
        for group in self._options.groups:
            answer = answers.get(group)
            if answer is None or isinstance(answer, AdminError):
                self._warn(f"nothing is trimmed: the offsets of group {group} are not known: {answer}")
                return {}
            committed = {partition: one.offset for partition, one in answer.items() if isinstance(one, CommittedOffset)}
            for partition in [partition for partition in wanted if partition not in committed]:
                self._warn(f"{partition} is not trimmed: group {group} has committed nothing there")
                del wanted[partition]
            wanted = {partition: min(offset, committed[partition]) for partition, offset in wanted.items()}
        return wanted

    def _warn(self, message: str) -> None:
        """Logs a warning, unless the same was logged within `REPEAT_MS`."""
        now_ms = self._clock.monotonic_ms()
        self._logged = {text: logged_ms for text, logged_ms in self._logged.items() if now_ms - logged_ms < REPEAT_MS}
        if message not in self._logged:
            self._logged[message] = now_ms
            log.warning("%s", message)

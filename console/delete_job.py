"""A delete of records from the page, and its progress.

It carries out exactly the plan that was shown. The progress has four steps: requested, deleted by the leader, deleted
by every replica (the answer), and disk space freed. The last step is watched until the planned bytes are free, at most
for `FREED_MS_MAX`: files are removed in whole segments, `file.delete.delay.ms` after they left the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.delete_plan import DeletePlan, PlannedDelete
from lowtide.admin.deletion import DeletedRecords, DeleteResult
from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import replicas_in
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.console.answers import sentence_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.runtime.clock import Clock

DELETE_S: Final = 60.0
WATCH_S: Final = 0.5
"""The time between checks of log starts and bytes."""

OF_REMOVED_FILES: Final = {"round", "reader", "switched-off"}
"""What removed files may wait for (`UnfreedReason`)."""

FREED_MS_MAX: Final = 150_000
"""How long freed bytes are watched; by default files are removed a minute after a delete."""


@dataclass(frozen=True, slots=True)
class RehearsedDelete:
    """A delete as it was shown."""

    plan: DeletePlan
    target: str
    leader_only: bool
    segments: Mapping[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    """What each partition's segments will free, if the brokers return it."""


def plan_value(plan: RehearsedDelete) -> dict[str, Any]:
    """Returns the plan for the page."""
    return {
        "target": plan.target,
        "leader_only": plan.leader_only,
        "records": plan.plan.records,
        "bytes": plan.plan.bytes,
        "partitions": [_row(each, plan.segments.get(each.partition)) for each in plan.plan.deletes],
    }


def _row(each: PlannedDelete, freed: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        **each.partition._asdict(),
        "log_start": each.log_start,
        "log_end": each.log_end,
        "delete_to": each.delete_to,
        "records": each.records,
        "bytes": each.bytes,
        "reason": each.reason,
        "freed": freed,
    }


class DeleteJob:
    """A running delete. Call `run` once, and `value` at any time."""

    def __init__(self, client: AdminClient, plan: RehearsedDelete, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.plan = plan
        self.times: dict[str, int] = {"asked": clock.wall_ms()}
        """The wall-clock time of each step that all partitions have finished."""
        self._begun_ms = clock.monotonic_ms()
        self._starts: dict[TopicPartition, int] = {}
        self._results: Mapping[TopicPartition, DeleteResult] = {}
        self._bytes_before: int | None = None
        self._bytes_now: int | None = None
        self._error: str | None = None
        self.is_over = False

    @property
    def _expected_bytes(self) -> int | None:
        """The bytes to free on all disks, if the brokers return them."""
        found = [each["on_all_disks"] for each in self.plan.segments.values()]
        return sum(found) if found else None

    async def run(self) -> None:
        """Deletes, and watches until the bytes are free."""
        offsets = self.plan.plan.offsets
        try:
            self._bytes_before = self._bytes_now = await self._bytes()
            deleting = asyncio.ensure_future(self._delete(offsets))  # noqa: TID251 - awaited below, whatever happens
            try:
                while not deleting.done():
                    await asyncio.wait([deleting], timeout=WATCH_S)
                    await self._look(offsets)
                self._results = await deleting
            finally:
                deleting.cancel()
            await self._look(offsets)
            if all(isinstance(each, DeletedRecords) for each in self._results.values()):
                self.times.setdefault("leader", self._clock.wall_ms())
                self.times["replicas"] = self._clock.wall_ms()
                await self._watch_bytes()
        except AdminError as error:
            self._error = sentence_of(error)
        finally:
            self.is_over = True

    async def _delete(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, DeleteResult]:
        return await self._client.delete_records(
            offsets, leader_only=self.plan.leader_only, timeout=DELETE_S, topic_ids=self.plan.plan.topic_ids
        )

    async def _look(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Looks up the log starts on the leaders."""
        found = await self._client.list_offsets(dict.fromkeys(offsets, OffsetSpec.EARLIEST))
        self._starts |= {key: each.offset for key, each in found.items() if isinstance(each, ListedOffset)}
        if all(self._starts.get(key, -1) >= offset for key, offset in offsets.items()):
            self.times.setdefault("leader", self._clock.wall_ms())

    async def _watch_bytes(self) -> None:
        """Waits until the planned bytes are free."""
        expected = self._expected_bytes
        until_ms = self._clock.monotonic_ms() + FREED_MS_MAX
        while self._bytes_before is not None and self._clock.monotonic_ms() < until_ms:
            self._bytes_now = await self._bytes()
            if expected is not None and self._freed() >= expected:
                self.times["freed"] = self._clock.wall_ms()
                return
            if expected is None and self._freed() > 0:
                self.times.setdefault("freed", self._clock.wall_ms())
            await asyncio.sleep(WATCH_S)

    def _freed(self) -> int:
        if self._bytes_before is None or self._bytes_now is None:
            return 0
        return max(0, self._bytes_before - self._bytes_now)

    async def _bytes(self) -> int | None:
        """Returns the bytes of the partitions on all disks, with deleted bytes that are not freed; None if unknown."""
        live = await self._live_bytes()
        return None if live is None else live + await self._deleted_bytes()

    async def _deleted_bytes(self) -> int:
        """Returns the bytes of removed files that are not freed, also of other deletes.

        What waits for other reasons is in a file of a log, and so in the log's size.
        """
        if not self.plan.segments:
            return 0
        try:
            answers = await self._client.describe_health()
        except AdminError:
            return 0
        found = [each for each in answers.values() if not isinstance(each, AdminError)]
        return sum(
            each.size_bytes
            for health in found
            for directory in health.log_dirs
            for each in directory.unfreed
            if each.waits_for in OF_REMOVED_FILES
        )

    async def _live_bytes(self) -> int | None:
        try:
            answers = await self._client.describe_log_dirs(partitions=list(self.plan.plan.offsets))
        except AdminError:
            return None
        return sum(replica.size_bytes for _, _, replica in replicas_in(answers))

    def value(self) -> dict[str, Any]:
        """Returns the progress for the page."""
        return {
            "target": self.plan.target,
            "leader_only": self.plan.leader_only,
            "over": self.is_over,
            "error": self._error,
            "times": self.times,
            "records": self.plan.plan.records,
            "expected_bytes": self._expected_bytes,
            "freed_bytes": None if self._bytes_before is None else self._freed(),
            "partitions": [self._partition(each) for each in self.plan.plan.deletes],
        }

    @staticmethod
    def _state(each: PlannedDelete, result: DeleteResult | None, start: int | None) -> str:
        if isinstance(result, DeletedRecords):
            return "done"
        if result is not None or each.reason:
            return "failed"
        reached = start is not None and each.delete_to is not None and start >= each.delete_to
        return "leader" if reached else "asked"

    def _partition(self, each: PlannedDelete) -> dict[str, Any]:
        result = self._results.get(each.partition)
        start = self._starts.get(each.partition)
        return {
            **each.partition._asdict(),
            "delete_to": each.delete_to,
            "records": each.records,
            "log_start": start,
            "low_watermark": result.low_watermark if isinstance(result, DeletedRecords) else None,
            "state": self._state(each, result, start),
            "error": sentence_of(result) if isinstance(result, AdminError) else each.reason,
        }


def jobs_value(jobs: Sequence[tuple[str, DeleteJob]]) -> list[dict[str, Any]]:
    """Returns jobs for the page, the last one first."""
    return [{"id": job_id, **job.value()} for job_id, job in reversed(jobs)]

"""Repeats the erasures that an export of a ledger names, on a cluster that was restored from before them.

The leaders decide which records are the named ones (FindRecords), so no other record can get an offset between looking
and erasing. Everything is erased first; then all brokers with a replica are asked whether their files are clean, so
each log is rewritten once.

A beginning that was erased (`records delete --erase`) is erased again only where the log start is at its offset or
above. Elsewhere nothing shows whether the records below are those that were deleted, or later ones: the ledger names
none of them. It is left to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from lowtide.admin.erasing import ERASE_PROBE, FIND_PROBE, unsupported
from lowtide.admin.errors import AdminError
from lowtide.admin.finding import ErasingTerms, FindCall, RecordQuery, SearchedPartition
from lowtide.admin.offsets import OffsetSpec, list_offsets
from lowtide.admin.replay_plan import LedgerPlace, ReplayPlan, ReplayStep, located
from lowtide.admin.replica_erasing import clean_replicas, replicas_of, unable_brokers
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.call import AdminClientBase
    from lowtide.admin.cluster_view import ClusterView

OnReplayed = Callable[[int], None]
"""Takes how many of the plan's steps have been done since the last call."""


@dataclass(slots=True, kw_only=True)
class ReplayedPartition:
    """What a replay did about one erasure in one partition."""

    erasure_id: UUID
    partition: TopicPartition
    named: int
    """How many records the export names."""
    found: int = 0
    """How many of them the log had; after a replay also those that earlier runs have erased, if the log knows it."""
    others: int = 0
    """How many offsets another record has now. It stays."""
    erased_by: tuple[BrokerId, ...] = ()
    """No file of these brokers has one of the records."""
    not_erased_by: Mapping[BrokerId, str] = field(default_factory=dict)
    """The other brokers with a replica, each with a reason."""
    error: AdminError | None = None

    @property
    def absent(self) -> int:
        """The number of records that the log doesn't have."""
        return max(self.named - self.found - self.others, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedBeginning:
    """A beginning that was erased below `offset` (exclusive)."""

    erasure_id: UUID
    partition: TopicPartition
    offset: Offset
    log_start_offset: Offset | AdminError

    @property
    def is_deleted(self) -> bool:
        """Whether nothing below `offset` can be read."""
        return not isinstance(self.log_start_offset, AdminError) and self.log_start_offset >= self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay, or of a dry run."""

    cluster_id: str | None
    """Of the cluster, not of the export."""
    partitions: Sequence[ReplayedPartition]
    beginnings: Sequence[ReplayedBeginning]
    gone: Sequence[LedgerPlace]
    """Partitions that the cluster doesn't have."""
    renamed: Mapping[TopicId, str]
    """Topics that were found by name, because no topic has the id."""


async def replay_erasures(
    client: AdminClientBase,
    plan: ReplayPlan,
    *,
    dry_run: bool = False,
    on_replayed: OnReplayed | None = None,
    timeout: float | None = None,
) -> Replay:
    """Repeats the erasures of a plan. The ledger records them under the same ids and commitments.

    `timeout` is for each step. `dry_run` only searches, which needs READ on the topics; otherwise DELETE is needed. A
    repeated call continues.

    Errors: EraseUnsupportedError if a broker with a replica can't erase, then nothing is erased; AdminError if no
    broker can be asked.
    """
    view = await client.call(timeout).view(None)
    replaying = _Replaying(client, view, located(plan, view), timeout)
    if not dry_run:
        await replaying.check_brokers()
    rows = replaying.rows
    for (erasure_id, place), named in plan.counts.items():
        if place in replaying.places:
            replaying.row(erasure_id, place).named = named
    for step in plan.steps:
        await replaying.run(step, dry_run=dry_run)
        if on_replayed is not None:
            on_replayed(1)
    beginnings = await replaying.beginnings(plan)
    if not dry_run:
        await replaying.clean(beginnings)
    return Replay(
        cluster_id=view.cluster_id,
        partitions=list(rows.values()),
        beginnings=beginnings,
        gone=[place for place in plan.places() if place not in replaying.places],
        renamed={
            place.topic_id: key.topic
            for place, key in replaying.places.items()
            if view.topic_id(key.topic) != place.topic_id
        },
    )


class _Replaying:
    """One call."""

    def __init__(
        self,
        client: AdminClientBase,
        view: ClusterView,
        places: Mapping[LedgerPlace, TopicPartition],
        timeout: float | None,
    ) -> None:
        self.places = places
        self.rows: dict[tuple[UUID, TopicPartition], ReplayedPartition] = {}
        self._client = client
        self._view = view
        self._timeout = timeout
        self._goals: dict[UUID, dict[TopicPartition, EraseGoal]] = {}

    def row(self, erasure_id: UUID, place: LedgerPlace) -> ReplayedPartition:
        """Returns the row of an erasure in a partition that isn't gone."""
        key = (erasure_id, self.places[place])
        return self.rows.setdefault(key, ReplayedPartition(erasure_id=erasure_id, partition=key[1], named=0))

    async def check_brokers(self) -> None:
        """Errors: EraseUnsupportedError if a live broker with a replica can't erase."""
        partitions = set(self.places.values())
        call = self._client.call(self._timeout)
        unable = await unable_brokers(call, partitions, self._view, [FIND_PROBE, ERASE_PROBE])
        for broker_id, reason in unable.items():
            concerned = [key for key in sorted(partitions) if broker_id in replicas_of(self._view, key)]
            raise unsupported(concerned[0], f"nothing is erased: {reason}")

    async def run(self, step: ReplayStep, *, dry_run: bool) -> None:
        """Erases the records of a step, or only looks for them."""
        runs = {self.places[place]: found for place, found in step.runs.items() if place in self.places}
        if not runs:
            return
        call = self._client.call(self._timeout)
        search = FindCall(
            call,
            RecordQuery(named=runs, named_kind=step.kind),
            None,
            search_id=call.cluster.ports.random.randbytes(16) if dry_run else step.erasure_id.bytes,
            ranges_max=0,
            erasing=None if dry_run else ErasingTerms(step.commitment),
        )
        topics = {key.topic for key in runs}
        search.topic_ids = {name: topic_id for name in topics if (topic_id := self._view.topic_id(name)) is not None}
        found = await search.run(runs)
        for place in step.runs:
            if place in self.places:
                self._note(self.row(step.erasure_id, place), found[self.places[place]], dry_run=dry_run)

    def _note(self, row: ReplayedPartition, found: SearchedPartition | AdminError, *, dry_run: bool) -> None:
        if isinstance(found, AdminError):
            row.error = found
            return
        row.others = min(row.others + found.other_count, row.named)
        # An erasing leader counts all records of the erasure that its log knows.
        count = row.found + found.count if dry_run else max(row.found, found.count)
        row.found = min(count, row.named - row.others)
        if not dry_run:
            self._aim(row.erasure_id, row.partition, found.goal)

    def _aim(self, erasure_id: UUID, partition: TopicPartition, goal: EraseGoal) -> None:
        goals = self._goals.setdefault(erasure_id, {})
        before = goals.get(partition, EraseGoal(0))
        goals[partition] = EraseGoal(max(before.offset, goal.offset), max(before.erasures_end, goal.erasures_end))

    async def beginnings(self, plan: ReplayPlan) -> list[ReplayedBeginning]:
        """Returns which beginnings are deleted."""
        wanted = {key: offset for key, offset in plan.beginnings.items() if key[1] in self.places}
        if not wanted:
            return []
        partitions = {self.places[place] for _, place in wanted}
        starts = await list_offsets(self._client, dict.fromkeys(partitions, OffsetSpec.EARLIEST), timeout=self._timeout)
        rows = []
        for (erasure_id, place), offset in wanted.items():
            partition = self.places[place]
            start = starts[partition]
            rows.append(
                ReplayedBeginning(
                    erasure_id=erasure_id,
                    partition=partition,
                    offset=offset,
                    log_start_offset=start if isinstance(start, AdminError) else start.offset,
                )
            )
        return rows

    async def clean(self, beginnings: Sequence[ReplayedBeginning]) -> None:
        """Waits until the files of all replicas are clean."""
        for each in beginnings:
            if each.is_deleted:
                key = (each.erasure_id, each.partition)
                self.rows.setdefault(
                    key, ReplayedPartition(erasure_id=each.erasure_id, partition=each.partition, named=0)
                )
                self._aim(*key, EraseGoal(each.offset))
        for erasure_id, goals in self._goals.items():
            call = self._client.call(self._timeout)
            for partition, cleaned in (await clean_replicas(call, goals, self._view, erasure_id)).items():
                row = self.rows[erasure_id, partition]
                row.erased_by, row.not_erased_by = cleaned

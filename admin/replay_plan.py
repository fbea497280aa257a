"""Plans the repetition of erasures that an export of a ledger names (`replaying`). Pure.

Only committed erasures are repeated. A record has the name that the ledger gives it: offset, leader epoch, timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from lowtide.protocol.erasure_ledger_records import (
    CleanReplica,
    LedgerEntry,
    NamedRecords,
    NamedRun,
    RecordName,
    SelectorKind,
    StandingKey,
    names_of,
    runs_of,
)
from lowtide.protocol.messages.find_records import NAMED_MAX
from lowtide.protocol.types import Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster_view import ClusterView


class LedgerPlace(NamedTuple):
    """A partition as the ledger names it."""

    topic_id: TopicId
    partition: int


class _Selector(NamedTuple):
    """The erasures with the same one are repeated together."""

    erasure_id: UUID
    kind: SelectorKind
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """What one request to each leader repeats: at most `NAMED_MAX` records of one erasure."""

    erasure_id: UUID
    kind: SelectorKind
    commitment: bytes
    runs: Mapping[LedgerPlace, Sequence[NamedRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What an export of a ledger says to erase again."""

    steps: Sequence[ReplayStep]
    counts: Mapping[tuple[UUID, LedgerPlace], int]
    """How many records each erasure names in each partition."""
    beginnings: Mapping[tuple[UUID, LedgerPlace], Offset]
    """Below which offset (exclusive) everything was erased."""
    topics: Mapping[TopicId, str]
    """The names of the topics that are to be found."""
    uncommitted: int
    """Searches whose erasure the export doesn't know to be committed. They are not repeated."""

    def places(self) -> list[LedgerPlace]:
        """Returns all partitions that are to be found, each once."""
        return list(dict.fromkeys(place for _, place in (*self.counts, *self.beginnings)))


def replay_plan(entries: Iterable[LedgerEntry]) -> ReplayPlan:
    """Makes the plan from the records of a ledger. Errors: ValueError for invalid values."""
    named: dict[_Selector, dict[LedgerPlace, set[RecordName]]] = {}
    names: dict[tuple[UUID, LedgerPlace], set[RecordName]] = {}
    beginnings: dict[tuple[UUID, LedgerPlace], Offset] = {}
    topics: dict[TopicId, str] = {}
    uncommitted = 0
    for entry in entries:
        key, value = entry.key, entry.value
        if isinstance(key, StandingKey):
            continue
        place, erasure_id = LedgerPlace(bytes(key.topic_id), key.partition), UUID(bytes=bytes(key.erasure_id))
        if isinstance(value, CleanReplica):
            if value.erasures_end < 0 < value.offset:
                beginnings[erasure_id, place] = max(value.offset, beginnings.get((erasure_id, place), 0))
                topics[place.topic_id] = value.topic
        elif isinstance(value, NamedRecords):
            if value.committed_ms < 0:
                uncommitted += 1
                continue
            found = _names(value)
            if found:
                selector = _Selector(erasure_id, SelectorKind(value.kind), bytes(value.commitment))
                named.setdefault(selector, {}).setdefault(place, set()).update(found)
                names.setdefault((erasure_id, place), set()).update(found)
                topics[place.topic_id] = value.topic
    return ReplayPlan(
        steps=[step for selector, places in named.items() for step in _steps(selector, places)],
        counts={key: len(found) for key, found in names.items()},
        beginnings=beginnings,
        topics=topics,
        uncommitted=uncommitted,
    )


def _names(value: NamedRecords) -> set[RecordName]:
    """Returns the names of records. Errors: ValueError."""
    negative = next((run.first_offset for run in value.records if run.first_offset < 0), None)
    if negative is not None:
        raise ValueError(f"a record of {value.topic} has the negative offset {negative}")
    return names_of(value.records)


def _steps(selector: _Selector, places: Mapping[LedgerPlace, set[RecordName]]) -> Iterator[ReplayStep]:
    """Splits the records of an erasure into requests."""
    rows = [(place, name) for place, found in places.items() for name in sorted(found)]
    for start in range(0, len(rows), NAMED_MAX):
        names: dict[LedgerPlace, list[RecordName]] = {}
        for place, name in rows[start : start + NAMED_MAX]:
            names.setdefault(place, []).append(name)
        runs = {place: runs_of(found) for place, found in names.items()}
        yield ReplayStep(erasure_id=selector.erasure_id, kind=selector.kind, commitment=selector.commitment, runs=runs)


def located(plan: ReplayPlan, view: ClusterView) -> dict[LedgerPlace, TopicPartition]:
    """Returns where the partitions are now, without those that are gone. `view` has all topics.

    A topic is found by id. If no topic has the id, the one with its name counts, unless the export names that one too:
    then the earlier topic was deleted, and its records are gone.
    """
    ids = {topic.topic_id: name for name, topic in view.topics.items() if topic.topic_id is not None}
    found: dict[LedgerPlace, TopicPartition] = {}
    for place in plan.places():
        name = ids.get(place.topic_id)
        if name is None:
            name = plan.topics[place.topic_id]
            if view.topic_id(name) in plan.topics:
                continue
        if not isinstance(view.partition(TopicPartition(name, place.partition)), int):
            found[place] = TopicPartition(name, place.partition)
    return found

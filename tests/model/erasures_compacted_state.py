"""The state of the model of an erasure in a compacted log, its rules, and the possible events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

KEY, OTHER, GONE, ERASURE = range(4)
FOUND_END = 2
"""The log end when the search begins: offsets 0 and 1 are searched."""
STOP, CUT, OLD_VOLUME, MOVE = "stop", "power cut", "old volume", "planned move"


class Entry(NamedTuple):
    """`named`: a bit set of offsets; `attempt`: of the search; `last`: no other part follows."""

    epoch: int
    kind: int
    named: int = 0
    attempt: int = 0
    last: bool = True


class Replica(NamedTuple):
    """`notes`: a bit set of attempts in which it has searched. `began`: the leader's high watermark when the log was
    empty, or 0. `answered`: its result is in the leader's. `heard`: it has fetched in this leader epoch. `coming`: an
    answer that is under way. `met`: the end of the erasure for which it started over in this leader epoch; `past`: the
    same when it began to copy."""

    log: tuple[Entry, ...]
    high_watermark: int
    notes: int
    began: int
    up: bool
    member: bool
    end: int
    answered: bool
    heard: bool
    coming: Entry | None
    met: int = 0
    past: int = 0

    def __str__(self) -> str:
        return (
            "["
            + " ".join(f"{'KQ-E'[entry.kind]}{entry.epoch}" for entry in self.log)
            + f"] (notes {self.notes:b}, high watermark {self.high_watermark})"
        )

    def __format__(self, spec: str) -> str:
        return str(self)


class World(NamedTuple):
    """`replicas[0]` leads if there is a leader. `search`: the leader's attempt, offsets found, whether it has searched
    its own log, offsets left for the last part (or -1)."""

    has_leader: bool
    epoch: int
    epoch_start: int
    replicas: tuple[Replica, ...]
    committed: tuple[int, ...]
    attempts: int
    search: tuple[int, int, bool, int] | None
    acknowledged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Parts of the model that can be switched off."""

    every_live_replica_searches: bool = True
    every_member_searches: bool = True
    leader_searches_first: bool = True
    searches_at_the_leaders_end: bool = True
    searches_in_this_epoch: bool = True
    answers_of_this_registration: bool = True
    starts_over_without_note: bool = True
    note_names_the_attempt: bool = True
    note_is_durable: bool = True
    starting_over_drops_notes: bool = True
    began_after_commit: bool = True
    isr_needs_the_erasure: bool = True
    appends_if_nothing_was_found: bool = True
    answers_with_the_last_part: bool = True
    met_in_this_epoch: bool = True
    ends_at_the_named_version: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The possible events. `logs`: at the start, by replica: the number of records; `members`: the ISR.

    `diverging`: the last replica has the person's record at 1, in an epoch that was lost; the others another record.
    `wanted`: a bit set of the offsets that are to be erased: both, or the older version only.
    `tombstones`: compaction may remove the newest version too. `away`: the last replica is down at the start.
    """

    faults: frozenset[str] = frozenset()
    logs: tuple[int, ...] = (2, 2, 2)
    members: tuple[int, ...] = (0, 1, 2)
    epochs: int = 3
    attempts: int = 2
    parts: bool = False
    diverging: bool = False
    tombstones: bool = False
    away: bool = False
    wanted: int = 3

"""The state of the model of erasures: logs with a person's record, three replicas, a durable and a volatile side.

An entry of a log is one number: its leader epoch, the offsets that it names if it is an erasure, and its kind. Two
entries at one offset with the same epoch are the same record; one of them may be rewritten away (GONE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PERSON, OTHER, ERASURE, GONE = range(4)
"""Kinds of entries: a record of the person, one of somebody else, an erasure, an empty frame."""

END = 3
"""Offsets are 0, 1 and 2."""
FIRST = 1
"""A record of the person is at offset 0 of every log at the start; the checkpoint of high watermarks has 1."""

KNOWN, BEGUN, DONE = range(3)
"""Stages of an erasure on a replica: in its file, rewriting may have begun, rewritten."""

STOP, CUT, OLD_VOLUME, EMPTY, MOVE = "stop", "power cut", "old volume", "new volume", "planned move"
UNCLEAN = "unclean election"

Log = tuple[int, ...]
FileEntry = tuple[int, int, int]
"""Offset, entry and stage of an erasure in the file `lowtide-erasures`."""
File = tuple[FileEntry, ...]


def entry_of(epoch: int, kind: int, named: int = 0) -> int:
    """Returns an entry; `named` is a bit set of offsets."""
    return epoch << 5 | named << 2 | kind


def kind_of(entry: int) -> int:
    return entry & 3


def named_by(entry: int) -> int:
    return entry >> 2 & 7


def epoch_of(entry: int) -> int:
    return entry >> 5


def gone(entry: int) -> int:
    """Returns the entry after its record was rewritten away."""
    return entry_of(epoch_of(entry), GONE)


class Replica(NamedTuple):
    """One replica.

    `synced` is the recovery point. `disk` is the durable version of `file`. `reverts`: rewritten segments aren't synced
    yet. `end` is the log end that the leader knows, or -1. `promised`: it has confirmed the acknowledged erasure.
    """

    log: Log
    synced: int
    high_watermark: int
    file: File
    disk: File
    reverts: bool
    up: bool
    member: bool
    end: int
    promised: bool

    def __str__(self) -> str:
        names = ("P", "Q", "E", "-")
        entries = " ".join(f"{names[kind_of(entry)]}{epoch_of(entry)}" for entry in self.log)
        return f"[{entries}] (synced {self.synced}, high watermark {self.high_watermark})"

    def __format__(self, spec: str) -> str:
        return str(self)


class World(NamedTuple):
    """`replicas[0]` is the leader if there is one; the others are sorted, because their names don't matter.

    `committed`: what some high watermark has passed. `erased`: (offset, epoch) of the records that a committed erasure
    has named. `asked`: those of the person that were committed when a search began. `acknowledged`: the offset and
    entry of the erasure, or empty if a search found nothing. `found`: epoch and offsets of a search whose erasure isn't
    appended yet, `queued`: a consumer's answer with the record waits in a socket (both only without their rule).
    """

    has_leader: bool
    epoch: int
    epoch_start: int
    replicas: tuple[Replica, ...]
    committed: Log
    erased: tuple[tuple[int, int], ...]
    asked: tuple[tuple[int, int], ...]
    acknowledged: tuple[int, ...] | None
    found: tuple[int, int] | None
    queued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Parts of the model that can be switched off."""

    effect_waits_for_commit: bool = True
    leader_stops_before_unknown: bool = True
    follower_stops_before_unknown: bool = True
    followers_serve_in_the_isr: bool = True
    effect_drops_queued_slices: bool = True
    appends_in_epoch_of_search: bool = True
    searches_to_log_end: bool = True
    durable_before_reported: bool = True
    durable_before_rewriting: bool = True
    durable_before_confirming: bool = True
    rewritten_before_confirming: bool = True
    effect_before_confirming: bool = True
    live_replicas_confirm: bool = True
    members_confirm: bool = True
    confirms_this_registration: bool = True
    flush_syncs_file: bool = True
    flush_syncs_removals: bool = True
    recovery_reads_batches: bool = True
    begin_is_durable: bool = True
    lost_effect_starts_over: bool = True
    isr_needs_epoch_start: bool = True
    followers_get_filtered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The possible events. `members`: the ISR at the start; replica 0 leads. `person_again`: another record of the
    person may be appended."""

    faults: frozenset[str]
    members: tuple[int, ...] = (0, 1, 2)
    epochs: int = 3
    person_again: bool = False
    replicas: int = 3
    away: bool = False
    """The last replica is down at the start."""


def put(values: tuple, index: int, value: object) -> tuple:
    """Returns the same tuple with one entry changed."""
    return (*values[:index], value, *values[index + 1 :])


def hidden(replica: Replica, rules: Rules) -> int:
    """Returns the offsets whose records this replica filters, as a bit set."""
    bits = 0
    for offset, entry, _ in replica.file:
        if offset < replica.high_watermark or not rules.effect_waits_for_commit:
            bits |= named_by(entry)
    return bits


def readable_end(world: World, index: int, rules: Rules) -> int:
    """Returns the end (exclusive) of what a consumer may read from this replica."""
    replica = world.replicas[index]
    leads = world.has_leader and not index
    end = replica.high_watermark
    if not (rules.leader_stops_before_unknown if leads else rules.follower_stops_before_unknown):
        return end
    for offset, entry, _ in replica.file:
        named = named_by(entry)
        if offset >= replica.high_watermark and not (leads and epoch_of(entry) == world.epoch) and named:
            end = min(end, (named & -named).bit_length() - 1)
    return end


def serves(world: World, index: int, rules: Rules) -> bool:
    """Decides whether consumers may read here: from the leader, or from a follower in the ISR (KIP-392)."""
    replica = world.replicas[index]
    if not replica.up or not world.has_leader:
        return False
    return not index or replica.member or not rules.followers_serve_in_the_isr


def recovered_file(log: Log, synced: int, file: File, rules: Rules) -> File:
    """Returns the erasures after a start: those below the recovery point from the file, others from the batches."""
    kept = tuple(row for row in file if row[0] < (synced if rules.recovery_reads_batches else len(log)))
    known = {row[0] for row in kept}
    read = tuple(
        (offset, log[offset], KNOWN)
        for offset in range(synced, len(log))
        if kind_of(log[offset]) == ERASURE and offset not in known
    )
    return kept + read


def has_named(replica: Replica, entry: int) -> bool:
    """Decides whether a file of the replica has a record that the erasure names, or may have one after a power cut."""
    named = named_by(entry)
    return replica.reverts or any(
        kind_of(record) == PERSON and named >> offset & 1 for offset, record in enumerate(replica.log)
    )


def matching_end(log: Log, leader: Log) -> int:
    """Returns the end of what two logs have in common."""
    for offset, (mine, theirs) in enumerate(zip(log, leader, strict=False)):
        if epoch_of(mine) != epoch_of(theirs):
            return offset
    return min(len(log), len(leader))

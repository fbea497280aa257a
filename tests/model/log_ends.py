"""The model of logs under deletes: ends, high watermarks, truncation, power cuts that take unflushed records, and
unclean elections.

Two replicas, offsets 0 and 1, so three positions for the start and end of a log. A record is identified by its leader
epoch. Metadata are simple here, all see a change at once (`cluster.py` has the rest). A fetch is accepted, answered and
applied in one step, or its answer is lost. A power cut removes any tail of a log; with flushes from time to time it is
the same, with fewer losses.

A start below which records are permanently deleted falls in two cases only: a truncation below it, or an unclean
election. The latter undoes acknowledged requests; the model then forgets that they were acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

REPLICAS = (0, 1)
END = 2
GONE = 0
"""The entry of an offset below the log start, without a known record."""
NO_LEADER = -1
CUT, UNCLEAN, MOVE = "power cut", "unclean election", "planned move"

Log = tuple[int, ...]
"""The leader epoch of each record, by offset; its length is the log end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Parts of the model that can be switched off."""

    rise_lifts_high_watermark: bool = True
    follower_below_the_start_is_reset: bool = True
    follower_at_the_start_is_reset: bool = True
    """Except after a response in this leader epoch without divergence: then it only deletes."""
    truncation_is_journalled_first: bool = True
    truncation_ends_a_rise: bool = True
    diverging_answer_only_truncates: bool = True
    load_lifts_end: bool = True
    deletes_keep_last_epoch: bool = True
    isr_needs_deletes: bool = True
    isr_needs_records: bool = True
    isr_needs_match: bool = True
    isr_of_this_registration: bool = True
    high_watermark_counts_isr: bool = True


class Replica(NamedTuple):
    """`start` is the visible log start, `disk` the durable one in the journal, `coming` the one that is being written.

    `heard`: its high watermark is from this leader epoch.
    """

    log: Log
    start: int
    disk: int
    coming: int | None
    high_watermark: int
    up: bool
    heard: bool


class FollowerState(NamedTuple):
    """The leader's state of the other. `matches`: all its records are those of the leader at the same offsets."""

    end: int
    start: int
    matches: bool


class World(NamedTuple):
    """The knowledge of clients: `committed` records by offset, `asked` deletes, the largest `acknowledged` delete."""

    leader: int
    epoch: int
    isr: tuple[bool, bool]
    replicas: tuple[Replica, Replica]
    known: FollowerState | None
    floor: int
    committed: Log
    asked: frozenset[tuple[int, int]]
    acknowledged: int


Steps = Iterator[tuple[bool, tuple, World]]


def put(values: tuple, index: int, value: object) -> tuple:
    """Returns the same tuple with one entry changed."""
    return (*values[:index], value, *values[index + 1 :])


def with_replica(world: World, number: int, replica: Replica) -> World:
    """The same with one replica changed."""
    return world._replace(replicas=put(world.replicas, number, replica))


def divergence(log: Log, leader: Replica) -> int:
    """Returns the end of what the two have in common; records that the leader has deleted count as common."""
    for offset in range(leader.start, len(log)):
        if offset >= len(leader.log) or log[offset] not in {leader.log[offset], GONE}:
            return offset
    return len(log)


def matches(replica: Replica, leader: Replica) -> bool:
    """Can the leader prove that nothing diverges? Below its own start it has no records and no epochs to compare.

    Logs that agree at an offset agree below it. So it can if the other has a record above the leader's start, or
    nothing below it, or if its last epoch is one that the leader has: that of its last deleted record, or a later one.
    """
    if replica.start >= leader.start or len(replica.log) > leader.start:
        return True
    return bool(replica.log) and replica.log[-1] in leader.log[leader.start - 1 :]


def truncated(replica: Replica, end: int, rules: Rules) -> Replica:
    """Truncates the log. A higher log start is lowered too, first in the journal; so is one that is being written."""
    start = min(replica.start, end)
    disk = start if start < replica.start and rules.truncation_is_journalled_first else replica.disk
    watermark = min(replica.high_watermark, end)
    coming = replica.coming
    if coming is not None and coming > end and rules.truncation_ends_a_rise:
        coming = None
    return Replica(replica.log[:end], start, disk, coming, watermark, replica.up, replica.heard)


def fetched(replica: Replica, leader: Replica, rules: Rules) -> Replica:
    """Returns the effect of a response on a follower."""
    end = divergence(replica.log, leader)
    start = leader.start
    below = len(replica.log) < start and rules.follower_below_the_start_is_reset
    at = len(replica.log) == start > replica.start and rules.follower_at_the_start_is_reset and not replica.heard
    if below or at:
        return Replica((GONE,) * start, start, start, None, start, True, True)
    if end < len(replica.log):
        if rules.diverging_answer_only_truncates:
            return truncated(replica, end, rules)
        return replica._replace(high_watermark=min(leader.high_watermark, len(replica.log)), heard=True)
    end = len(replica.log)
    log = replica.log + leader.log[end : end + 1]
    watermark = max(replica.high_watermark, min(leader.high_watermark, len(log)))
    coming = leader.start if leader.start > replica.start else replica.coming
    return replica._replace(log=log, high_watermark=watermark, coming=coming, heard=True)


def advanced(world: World, rules: Rules) -> World:
    """Sets the leader's high watermark to the smallest end of the ISR; records below it are committed."""
    leader = world.replicas[world.leader]
    end = len(leader.log)
    if world.isr[1 - world.leader] and rules.high_watermark_counts_isr:
        end = min(end, world.known.end) if world.known is not None else 0
    watermark = max(leader.high_watermark, end)
    committed = world.committed + leader.log[len(world.committed) : watermark]
    return with_replica(world, world.leader, leader._replace(high_watermark=watermark))._replace(committed=committed)


def elected(world: World, number: int, rules: Rules) -> World:
    """A new leader epoch. If all copies of other records are lost, the leader's log defines what is committed."""
    replica = world.replicas[number]
    isr = (
        put((False, False), number, True)
        if not world.isr[number]
        else tuple(world.isr[other] and world.replicas[other].up for other in REPLICAS)
    )
    replicas = tuple(side._replace(heard=other == number) for other, side in enumerate(world.replicas))
    led = World(
        number, world.epoch + 1, isr, replicas, None, replica.start, world.committed, world.asked, world.acknowledged
    )
    return advanced(led, rules)


class LogEnds:
    """The whole model."""

    def __init__(
        self,
        rules: Rules,
        faults: frozenset[str],
        first_isrs: tuple[tuple[bool, bool], ...] = ((True, True), (True, False)),
    ) -> None:
        self.rules = rules
        self.faults = faults
        self.first_isrs = first_isrs

    def starts(self) -> Iterator[tuple[tuple, World]]:
        empty = Replica((), 0, 0, None, 0, True, True)
        for isr in self.first_isrs:
            known = FollowerState(0, 0, True)
            text = "replica 0 leads in leader epoch 1, ISR {}"
            yield (
                (text, [number for number in REPLICAS if isr[number]]),
                World(0, 1, isr, (empty, empty), known, 0, (), frozenset(), 0),
            )

    def steps(self, world: World, may_fail: bool) -> Steps:
        for number in REPLICAS:
            yield from self.disk_steps(world, number, may_fail)
        if world.leader == NO_LEADER:
            yield from self.election_steps(world, may_fail)
            return
        yield from self.leader_steps(world)
        other = 1 - world.leader
        if world.replicas[other].up:
            yield from self.follower_steps(world, other)
            if may_fail and MOVE in self.faults and world.isr[other]:
                yield True, ("the leadership MOVES to replica {}", other), elected(world, other, self.rules)

    def disk_steps(self, world: World, number: int, may_fail: bool) -> Steps:
        rules = self.rules
        replica = world.replicas[number]
        if not replica.up:
            yield False, ("replica {} starts again", number), self.loaded(world, number)
            return
        if replica.coming is not None:
            start = replica.coming
            watermark = (
                max(replica.high_watermark, start) if rules.rise_lifts_high_watermark else replica.high_watermark
            )
            risen = replica._replace(coming=None)
            if start > replica.start:
                gone = replica.log[:start] if rules.deletes_keep_last_epoch else (GONE,) * min(start, len(replica.log))
                log = gone + replica.log[start:]
                risen = risen._replace(log=log, start=start, disk=start, high_watermark=watermark)
            yield False, ("replica {} has log start {} on its disk", number, start), with_replica(world, number, risen)
        if may_fail and CUT in self.faults:
            for end in range(len(replica.log) + 1):
                yield True, ("replica {} LOSES POWER; its log ends at {}", number, end), self.cut(world, number, end)

    def cut(self, world: World, number: int, end: int) -> World:
        """The state after recovery: a log that ends below its start is emptied at its start.

        All see at once that it is down; the controller removes it from the ISR if another member is live, and elects
        that one.
        """
        replica = world.replicas[number]
        start = replica.disk
        log = replica.log[:end]
        if len(log) < start and self.rules.load_lifts_end:
            log = replica.log[:start] if self.rules.deletes_keep_last_epoch else (GONE,) * start
        down = Replica(log, start, start, None, 0, False, False)
        after = with_replica(world, number, down)
        other = 1 - number
        alive = world.isr[other] and world.replicas[other].up
        if alive and self.rules.isr_of_this_registration:
            after = after._replace(isr=put(after.isr, number, False))
        if number != world.leader:
            return advanced(after._replace(known=None), self.rules) if world.leader != NO_LEADER else after
        if alive:
            after = elected(after, other, self.rules)
            return after if self.rules.isr_of_this_registration else after._replace(isr=world.isr)
        return after._replace(leader=NO_LEADER, known=None)

    def loaded(self, world: World, number: int) -> World:
        """Deleted records were committed; nothing else is known."""
        replica = world.replicas[number]
        watermark = replica.start if self.rules.rise_lifts_high_watermark else 0
        return with_replica(world, number, replica._replace(high_watermark=watermark, up=True))

    def election_steps(self, world: World, may_fail: bool) -> Steps:
        """Cleanly a member of the ISR; records that the last one lost are lost.

        Uncleanly any replica: promises to clients end there.
        """
        for number in REPLICAS:
            replica = world.replicas[number]
            if not replica.up:
                continue
            kept = world._replace(committed=world.committed[: len(replica.log)])
            if world.isr[number]:
                yield False, ("replica {} is elected", number), elected(kept, number, self.rules)
            elif may_fail and UNCLEAN in self.faults:
                common = replica.log[: len(kept.committed)]
                void = kept._replace(committed=common, acknowledged=min(world.acknowledged, replica.start))
                yield True, ("replica {} is ELECTED UNCLEANLY", number), elected(void, number, self.rules)

    def leader_steps(self, world: World) -> Steps:
        number = world.leader
        leader = world.replicas[number]
        other = 1 - number
        if len(leader.log) < END:
            appended = with_replica(world, number, leader._replace(log=(*leader.log, world.epoch)))
            yield False, ("replica {} appends offset {}", number, len(leader.log)), advanced(appended, self.rules)
        if leader.coming is None:
            for offset in range(leader.start + 1, leader.high_watermark + 1):
                accepted = with_replica(world, number, leader._replace(coming=offset))
                yield (
                    False,
                    ("a delete to {} is accepted", offset),
                    accepted._replace(asked=world.asked | set(enumerate(leader.log[:offset]))),
                )
        waits = world.isr[other] or world.replicas[other].up
        if leader.start > world.acknowledged and (
            not waits or (world.known is not None and world.known.start >= leader.start)
        ):
            floor = max(world.floor, leader.start)
            yield (
                False,
                ("the delete to {} is ACKNOWLEDGED", leader.start),
                world._replace(acknowledged=leader.start, floor=floor),
            )
        if world.isr[other]:
            yield (
                False,
                ("the ISR shrinks to {}", number),
                advanced(world._replace(isr=put(world.isr, other, False)), self.rules),
            )
        elif world.known is not None and world.replicas[other].up:
            caught_up = world.known.end >= leader.high_watermark or not self.rules.isr_needs_records
            caught_up = caught_up and (world.known.matches or not self.rules.isr_needs_match)
            if caught_up and (world.known.start >= world.floor or not self.rules.isr_needs_deletes):
                yield False, ("replica {} joins the ISR", other), advanced(world._replace(isr=(True, True)), self.rules)

    def follower_steps(self, world: World, number: int) -> Steps:
        replica, leader = world.replicas[number], world.replicas[world.leader]
        diverges = divergence(replica.log, leader) < len(replica.log)
        known = world.known if diverges else FollowerState(len(replica.log), replica.start, matches(replica, leader))
        taken = advanced(world._replace(known=known), self.rules)
        after = fetched(replica, taken.replicas[world.leader], self.rules)
        label = ("replica {} fetches (end {}, start {})", number, len(replica.log), replica.start)
        yield False, label, with_replica(taken, number, after)
        yield False, ("replica {} fetches (end {}, start {}), and the answer is lost", *label[1:]), taken

    def violation(self, world: World) -> str | None:
        for number in REPLICAS:
            replica = world.replicas[number]
            if replica.up and not replica.start <= replica.high_watermark <= len(replica.log):
                offsets = f"start {replica.start}, high watermark {replica.high_watermark}, end {len(replica.log)}"
                return f"D6: replica {number} has {offsets}"
            if replica.start != replica.disk:
                return f"D5: replica {number} starts at {replica.start}, and after a crash it would at {replica.disk}"
            if world.isr[number] and replica.start < world.acknowledged:
                return (
                    f"D8: replica {number} is in the ISR and starts at {replica.start}, below the acknowledged "
                    f"{world.acknowledged}"
                )
            missing = {
                (offset, epoch) for offset, epoch in enumerate(world.committed[: replica.start]) if epoch != GONE
            } - world.asked
            if world.isr[number] and missing:
                return (
                    f"D7: replica {number} is in the ISR and starts at {replica.start}, though no client "
                    f"deleted {sorted(missing)}"
                )
        if world.leader != NO_LEADER:
            leader = world.replicas[world.leader]
            if leader.start < world.acknowledged:
                return "D1: the leader shows deleted records"
            for offset in range(leader.start, len(world.committed)):
                if leader.log[offset : offset + 1] != world.committed[offset : offset + 1]:
                    return f"R1: the leader has lost the committed record at {offset}"
        first, second = world.replicas
        for offset in range(max(first.start, second.start), min(first.high_watermark, second.high_watermark)):
            if first.up and second.up and first.heard and second.heard and first.log[offset] != second.log[offset]:
                return f"P1: two records at {offset}, both below the high watermark"
        return None

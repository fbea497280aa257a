"""The model of an erasure in a compacted log: replicas compact separately, so each searches its own log.

Two versions of the person's key are at offsets 0 and 1; the erasure follows at 2, or its two parts at 2 and 3. A
replica that has both versions may compact the older one away. What is in a log is on the disk; a power cut may take its
end. Reading and rewriting are in `erasures.py`: here a committed erasure removes what it names at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from .erasures_compacted_state import (
    CUT,
    ERASURE,
    FOUND_END,
    GONE,
    KEY,
    MOVE,
    OLD_VOLUME,
    OTHER,
    STOP,
    Entry,
    Replica,
    Rules,
    Scope,
    World,
)
from .erasures_state import put

Steps = Iterator[tuple[bool, tuple, World]]


def sort_key(replica: Replica) -> tuple:
    """Orders replicas whose names don't matter."""
    return (replica[:9], replica[10:], replica.coming is not None, replica.coming or ())


def sorted_world(world: World) -> World:
    """Returns the canonical form."""
    first = 1 if world.has_leader else 0
    return world._replace(replicas=world.replicas[:first] + tuple(sorted(world.replicas[first:], key=sort_key)))


def with_replica(world: World, index: int, replica: Replica) -> World:
    """The same with one replica changed."""
    return sorted_world(world._replace(replicas=put(world.replicas, index, replica)))


def erased(replica: Replica) -> Replica:
    """Removes what the erasures below the high watermark name."""
    named = 0
    for entry in replica.log[FOUND_END : replica.high_watermark]:
        named |= entry.named
    log = tuple(entry._replace(kind=GONE) if named >> place & 1 else entry for place, entry in enumerate(replica.log))
    return replica._replace(log=log) if named else replica


def advanced(world: World) -> World:
    """Sets the leader's high watermark to the smallest end of the ISR."""
    leader = world.replicas[0]
    end = min([len(leader.log), *(replica.end for replica in world.replicas[1:] if replica.member)])
    end = max(leader.high_watermark, end)
    committed = world.committed + tuple(entry.epoch for entry in leader.log[len(world.committed) : end])
    leader = erased(leader._replace(high_watermark=end))
    return sorted_world(world._replace(replicas=put(world.replicas, 0, leader), committed=committed))


def elected(world: World, index: int, *, keeps_met: bool = False) -> World:
    """A member of the ISR leads in a new epoch. A search of the former leader ends."""
    forgets = {"end": -1, "answered": False, "coming": None}
    if not keeps_met:
        forgets |= {"met": 0, "past": 0}
    others = [
        replica._replace(member=replica.member and replica.up, heard=False, **forgets)
        for place, replica in enumerate(world.replicas)
        if place != index
    ]
    leader = world.replicas[index]._replace(heard=True, **forgets)
    return advanced(
        world._replace(
            has_leader=True,
            epoch=world.epoch + 1,
            epoch_start=len(leader.log),
            replicas=(leader, *others),
            search=None,
        )
    )


def held(replica: Replica) -> int:
    """Returns the offsets at which the replica has the person's records, as a bit set."""
    return sum(1 << place for place, entry in enumerate(replica.log[:FOUND_END]) if entry.kind == KEY)


class CompactedErasures:
    """The whole model."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules = rules
        self.scope = scope

    def starts(self) -> Iterator[tuple[tuple, World]]:
        scope = self.scope
        log = (Entry(0, KEY), Entry(1, OTHER) if scope.diverging else Entry(0, KEY))
        lost = (Entry(0, KEY), Entry(0, KEY))
        committed = 2 if all(scope.logs[index] > 1 for index in scope.members) else 1
        replicas = []
        for index, end in enumerate(scope.logs):
            last = index == len(scope.logs) - 1
            own = lost if scope.diverging and last else log
            up, ends = not (scope.away and last), -1 if scope.diverging and last else end
            replicas.append(
                Replica(
                    own[:end],
                    min(end, committed if own is log else 1),
                    0,
                    0,
                    up,
                    index in scope.members,
                    ends if index and up else -1,
                    False,
                    own is log,
                    None,
                )
            )
        epochs = tuple(entry.epoch for entry in log[:committed])
        yield (
            ("the ISR is {}", list(scope.members)),
            sorted_world(World(True, 1, 2 if scope.diverging else 0, tuple(replicas), epochs, 0, None, False)),
        )

    def steps(self, world: World, may_fail: bool) -> Steps:
        for index, replica in enumerate(world.replicas):
            if index > world.has_leader and replica == world.replicas[index - 1]:
                continue
            if not replica.up:
                yield False, ("{} returns", replica), with_replica(world, index, replica._replace(up=True))
                continue
            yield from self.compaction_steps(world, index)
            if may_fail and world.epoch < self.scope.epochs:
                yield from self.fault_steps(world, index)
            if world.has_leader and index:
                yield from self.fetch_steps(world, index)
                yield from self.isr_steps(world, index)
        if world.has_leader:
            yield from self.leader_steps(world)
            return
        for index, replica in enumerate(world.replicas):
            if replica.up and replica.member:
                after = elected(world, index, keeps_met=not self.rules.met_in_this_epoch)
                yield False, ("{} is elected", replica), after

    def compaction_steps(self, world: World, index: int) -> Steps:
        replica = world.replicas[index]
        bits = held(replica)
        if replica.high_watermark >= FOUND_END and (bits == 3 or (self.scope.tombstones and bits)):
            place = 0 if bits & 1 else 1
            log = put(replica.log, place, replica.log[place]._replace(kind=GONE))
            yield (
                False,
                ("{} compacts offset {} away", replica, place),
                with_replica(world, index, replica._replace(log=log)),
            )

    def fault_steps(self, world: World, index: int) -> Steps:
        replica, faults = world.replicas[index], self.scope.faults
        last = replica.member and not any(
            other.member and other.up for place, other in enumerate(world.replicas) if place != index
        )
        if STOP in faults:
            yield True, ("{} STOPS", replica), self.down(world, index, replica, last)
        if CUT in faults and not last:
            for end in range(len(replica.log) + 1):
                notes = replica.notes if self.rules.note_is_durable else 0
                after = replica._replace(log=replica.log[:end], notes=notes)
                yield True, ("{} LOSES POWER, {} remains", replica, after), self.down(world, index, after, last)
        if OLD_VOLUME in faults and not last and not self.scope.diverging:
            old = replica._replace(log=(Entry(0, KEY), Entry(0, KEY)), notes=0)
            yield True, ("{} comes back WITH AN OLD VOLUME", replica), self.down(world, index, old, last)
        if MOVE in faults and world.has_leader and not index:
            for other in range(1, len(world.replicas)):
                if world.replicas[other].member and world.replicas[other].up:
                    moved = elected(world, other, keeps_met=not self.rules.met_in_this_epoch)
                    yield True, ("the leadership MOVES to {}", world.replicas[other]), moved

    def down(self, world: World, index: int, replica: Replica, last: bool) -> World:
        """It leaves the ISR, unless it is the last member. What it has said in its registration doesn't count."""
        away = replica._replace(
            high_watermark=min(replica.high_watermark, len(replica.log), FOUND_END),
            began=0,
            up=False,
            member=last,
            end=-1,
            answered=replica.answered and not self.rules.answers_of_this_registration,
            heard=False,
            coming=None,
            met=0,
            past=0,
        )
        after = world._replace(replicas=put(world.replicas, index, away))
        if not world.has_leader:
            return sorted_world(after)
        if index:
            return advanced(after)
        forgets = tuple(side._replace(answered=False, coming=None) for side in after.replicas)
        return sorted_world(after._replace(has_leader=False, search=None, replicas=forgets))

    def fetch_steps(self, world: World, index: int) -> Steps:
        """The leader reads an answer; it arrives later."""
        replica, leader = world.replicas[index], world.replicas[0]
        if replica.coming is not None:
            yield False, ("an answer arrives at {}", replica), self.arrived(world, index)
            return
        end = next(
            (
                place
                for place, (mine, theirs) in enumerate(zip(replica.log, leader.log, strict=False))
                if mine.epoch != theirs.epoch
            ),
            min(len(replica.log), len(leader.log)),
        )
        if end < len(replica.log):
            cut = replica._replace(log=replica.log[:end], high_watermark=min(replica.high_watermark, end))
            yield False, ("{} fetches and diverges at {}", replica, end), with_replica(world, index, cut)
            return
        began = replica.began
        if not end:
            began = leader.high_watermark if self.rules.began_after_commit else len(leader.log) + 2
        asked = replica._replace(end=end, heard=True, began=began, past=replica.past if end else replica.met)
        taken = advanced(world._replace(replicas=put(world.replicas, index, asked)))
        place = taken.replicas.index(asked)
        leader = taken.replicas[0]
        if end < len(leader.log):
            sent = with_replica(taken, place, asked._replace(coming=leader.log[end]))
            yield False, ("the leader reads an answer for {}", replica), sent
        else:
            after = erased(asked._replace(high_watermark=max(asked.high_watermark, min(leader.high_watermark, end))))
            yield False, ("{} fetches at the end", replica), with_replica(taken, place, after)

    def arrived(self, world: World, index: int) -> World:
        replica, rules = world.replicas[index], self.rules
        entry = replica.coming
        assert entry is not None
        offset = len(replica.log)
        if entry.kind == ERASURE and rules.starts_over_without_note:
            noted = replica.notes >> entry.attempt & 1 if rules.note_names_the_attempt else replica.notes
            if not noted and not max(replica.began, replica.past) > offset:
                notes = 0 if rules.starting_over_drops_notes else replica.notes
                empty = replica._replace(log=(), high_watermark=0, notes=notes, began=0, coming=None, heard=False)
                empty = empty._replace(met=offset + 1, past=0)
                return with_replica(world, index, empty)
        return with_replica(world, index, erased(replica._replace(log=(*replica.log, entry), coming=None)))

    def isr_steps(self, world: World, index: int) -> Steps:
        replica, leader = world.replicas[index], world.replicas[0]
        if replica.member:
            shrunk = advanced(world._replace(replicas=put(world.replicas, index, replica._replace(member=False))))
            yield False, ("{} leaves the ISR", replica), shrunk
            return
        floor = max(world.epoch_start, leader.high_watermark)
        if self.rules.isr_needs_the_erasure and len(leader.log) > FOUND_END and leader.log[-1].kind == ERASURE:
            floor = max(floor, len(leader.log))
        if self.rules.isr_needs_the_erasure and world.search and self.rules.every_member_searches:
            floor = max(floor, 0 if replica.answered else 99)
        if replica.end >= floor:
            yield False, ("{} joins the ISR", replica), with_replica(world, index, replica._replace(member=True))

    def leader_steps(self, world: World) -> Steps:
        leader = world.replicas[0]
        if world.acknowledged:
            return
        if len(leader.log) == FOUND_END:
            other = leader._replace(log=(*leader.log, Entry(world.epoch, OTHER)))
            if world.search is None:
                yield False, ("the leader appends another record",), advanced(with_replica(world, 0, other))
        erasures = [entry for entry in leader.log if entry.kind == ERASURE]
        complete = erasures and (erasures[-1].last or not self.rules.answers_with_the_last_part)
        if complete:
            yield from self.confirm_steps(world)
        elif world.search is None and world.attempts < self.scope.attempts and len(leader.log) <= FOUND_END:
            search = (world.attempts + 1, 0, False, -1)
            begun = world._replace(attempts=world.attempts + 1, search=search)
            first = self.rules.leader_searches_first
            yield False, ("a search begins",), self.leader_searched(begun) if first else begun
        if world.search is not None:
            yield from self.search_steps(world)

    def found_in(self, replica: Replica) -> int:
        """Returns what a search of a replica finds. The key is known: all replicas get it with the wanted end."""
        return held(replica) & (self.scope.wanted if self.rules.ends_at_the_named_version else 3)

    def leader_searched(self, world: World) -> World:
        attempt, found, _, left = world.search or (0, 0, False, -1)
        leader = world.replicas[0]
        noted = leader._replace(notes=leader.notes | 1 << attempt)
        return with_replica(world._replace(search=(attempt, found | self.found_in(leader), True, left)), 0, noted)

    def search_steps(self, world: World) -> Steps:
        rules = self.rules
        assert world.search is not None
        attempt, found, own, left = world.search
        if left < 0:
            idle = tuple(replica._replace(answered=False) for replica in world.replicas)
            yield False, ("the search is given up",), sorted_world(world._replace(search=None, replicas=idle))
        if not own:
            yield False, ("the leader searches",), self.leader_searched(world)
        for index, replica in enumerate(world.replicas[1:], 1):
            ready = len(replica.log) >= FOUND_END or not rules.searches_at_the_leaders_end
            ready = ready and (replica.heard or not rules.searches_in_this_epoch)
            if replica.up and ready and not replica.answered:
                after = replica._replace(notes=replica.notes | 1 << attempt, answered=True)
                begun = world._replace(search=(attempt, found | self.found_in(replica), own, left))
                yield False, ("{} searches", replica), with_replica(begun, index, after)
        waits = any(
            not replica.answered
            and ((replica.up and rules.every_live_replica_searches) or (replica.member and rules.every_member_searches))
            for replica in world.replicas[1:]
        )
        if not own or waits:
            return
        if not found and not rules.appends_if_nothing_was_found:
            yield False, ("nothing was found: ACKNOWLEDGED",), world._replace(acknowledged=True, search=None)
            return
        yield False, ("the leader appends an erasure of {:b}", found), self.appended(world)

    def appended(self, world: World) -> World:
        assert world.search is not None
        attempt, found, own, left = world.search
        named = found if left < 0 else left
        part = named & -named if self.scope.parts and left < 0 else named
        last = part == named
        leader = world.replicas[0]
        entry = Entry(world.epoch, ERASURE, part, attempt, last)
        after = world._replace(search=None if last else (attempt, found, own, named - part))
        if last:
            after = after._replace(replicas=tuple(side._replace(answered=False) for side in after.replicas))
        return advanced(with_replica(after, 0, after.replicas[0]._replace(log=(*leader.log, entry))))

    def confirm_steps(self, world: World) -> Steps:
        leader = world.replicas[0]
        end, last = len(leader.log), leader.log[-1]
        if last.kind != ERASURE or leader.high_watermark < end:
            return
        if all(
            replica.log[end - 1 : end] == (last,) and replica.high_watermark >= end
            for replica in world.replicas
            if replica.up or replica.member
        ):
            yield False, ("the erasure is ACKNOWLEDGED",), world._replace(acknowledged=True)

    def violation(self, world: World) -> str | None:
        if world.has_leader:
            epochs = tuple(entry.epoch for entry in world.replicas[0].log)
            if epochs[: len(world.committed)] != world.committed:
                return f"R1: the leader {world.replicas[0]} has lost a committed record"
        for index, replica in enumerate(world.replicas):
            if any(entry.kind == GONE and entry.epoch for entry in replica.log):
                return f"E2: {replica} has lost a record of somebody else"
            serves = replica.up and (replica.member or (world.has_leader and not index))
            named = 0
            for entry in replica.log[FOUND_END:]:
                named |= entry.named
            if named & ~self.scope.wanted:
                return f"E2: {replica} loses a newer version"
            if world.acknowledged and serves and held(replica) & self.scope.wanted & ~named:
                return f"E1: {replica} serves an erased record"
        return None

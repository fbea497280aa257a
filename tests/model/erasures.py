"""The model of an erasure among replicas: elections, truncation, power cuts, restored and empty volumes.

Three replicas have a record of the person at offset 0. The leader searches and appends an erasure, at offset 1 or 2. A
fetch is answered with one entry, or its answer is lost. Metadata are simple here: all see a change at once. Searching
takes no time unless the rule of its epoch is off. `erasures_compacted.py` has logs that replicas compact separately.
"""

from __future__ import annotations

from collections.abc import Iterator

from .erasures_state import (
    BEGUN,
    CUT,
    DONE,
    EMPTY,
    END,
    ERASURE,
    FIRST,
    GONE,
    KNOWN,
    MOVE,
    OLD_VOLUME,
    OTHER,
    PERSON,
    STOP,
    UNCLEAN,
    Replica,
    Rules,
    Scope,
    World,
    entry_of,
    epoch_of,
    gone,
    has_named,
    hidden,
    kind_of,
    matching_end,
    named_by,
    put,
    readable_end,
    recovered_file,
    serves,
)

Steps = Iterator[tuple[bool, tuple, World]]


def sorted_world(world: World) -> World:
    """Returns the canonical form."""
    first = 1 if world.has_leader else 0
    return world._replace(replicas=world.replicas[:first] + tuple(sorted(world.replicas[first:])))


def with_replica(world: World, index: int, replica: Replica) -> World:
    """The same with one replica changed."""
    return sorted_world(world._replace(replicas=put(world.replicas, index, replica)))


def advanced(world: World) -> World:
    """Sets the leader's high watermark to the smallest end of the ISR; entries below it are committed."""
    leader = world.replicas[0]
    end = min([len(leader.log), *(replica.end for replica in world.replicas[1:] if replica.member)])
    watermark = max(leader.high_watermark, end)
    if watermark == leader.high_watermark and watermark <= len(world.committed):
        return world
    committed = world.committed + leader.log[len(world.committed) : watermark]
    erased = set(world.erased)
    for entry in committed:
        for offset in range(END):
            if kind_of(entry) == ERASURE and named_by(entry) >> offset & 1 and offset < len(committed):
                erased.add((offset, epoch_of(committed[offset])))
    return with_replica(world, 0, leader._replace(high_watermark=watermark))._replace(
        committed=committed, erased=tuple(sorted(erased))
    )


def elected(world: World, index: int) -> World:
    """A member of the ISR leads in a new epoch, which all see."""
    leader = world.replicas[index]
    others = [
        replica._replace(member=replica.member and replica.up, end=-1)
        for other, replica in enumerate(world.replicas)
        if other != index
    ]
    led = world._replace(
        has_leader=True,
        epoch=world.epoch + 1,
        epoch_start=len(leader.log),
        replicas=(leader._replace(end=-1), *others),
    )
    return advanced(sorted_world(led))


class Erasures:
    """The whole model."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules = rules
        self.scope = scope

    def starts(self) -> Iterator[tuple[tuple, World]]:
        log = (entry_of(0, PERSON),)
        first = Replica(log, FIRST, FIRST, (), (), False, True, True, FIRST, False)
        replicas = tuple(
            first._replace(member=index in self.scope.members, end=-1 if not index else FIRST)
            for index in range(self.scope.replicas)
        )
        if self.scope.away:
            replicas = (*replicas[:-1], replicas[-1]._replace(up=False, end=-1))
        world = World(True, 1, 1, replicas, log, (), (), None, None, False)
        yield ("all have P0, and the ISR is {}", list(self.scope.members)), sorted_world(world)

    def steps(self, world: World, may_fail: bool) -> Steps:
        for index, replica in enumerate(world.replicas):
            if index > world.has_leader and replica == world.replicas[index - 1]:
                continue
            if replica.up:
                yield from self.disk_steps(world, index)
            else:
                yield False, ("{} returns", replica), self.returned(world, index)
            if may_fail and world.epoch < self.scope.epochs and replica.up:
                yield from self.fault_steps(world, index)
            if world.has_leader and index and replica.up:
                yield from self.fetch_steps(world, index)
                yield from self.isr_steps(world, index)
        if world.has_leader:
            yield from self.leader_steps(world)
            return
        for index, replica in enumerate(world.replicas):
            if replica.up and replica.member:
                yield False, ("{} is elected", replica), elected(world, index)
            elif replica.up and may_fail and UNCLEAN in self.scope.faults:
                yield True, ("{} is ELECTED UNCLEANLY", replica), self.elected_uncleanly(world, index)

    def elected_uncleanly(self, world: World, index: int) -> World:
        """What was promised to clients is void: the request has to be repeated."""
        replicas = tuple(
            replica._replace(member=place == index, promised=False) for place, replica in enumerate(world.replicas)
        )
        leader = replicas[index]
        committed = world.committed[: matching_end(leader.log, world.committed)]
        void = world._replace(replicas=replicas, committed=committed, acknowledged=None)
        return elected(void, index)

    def disk_steps(self, world: World, index: int) -> Steps:
        replica, rules = world.replicas[index], self.rules
        unsynced = [row for row in replica.file if row[0] >= replica.synced]
        syncs = (unsynced or rules.flush_syncs_removals) and rules.flush_syncs_file
        flushed = replica._replace(synced=len(replica.log), disk=replica.file if syncs else replica.disk)
        if flushed != replica:
            yield False, ("{} flushes", replica), with_replica(world, index, flushed)
        if replica.reverts:
            file = tuple((offset, entry, DONE if stage == BEGUN else stage) for offset, entry, stage in replica.file)
            done = replica._replace(reverts=False, file=file)
            yield False, ("{} syncs its rewritten segment", replica), with_replica(world, index, done)
        for row, (offset, entry, stage) in enumerate(replica.file):
            effective = offset < replica.high_watermark or not rules.effect_waits_for_commit
            durable = offset < replica.synced or not rules.durable_before_rewriting
            if stage == DONE or not effective or not durable:
                continue
            file = put(replica.file, row, (offset, entry, BEGUN))
            named = named_by(entry)
            log = tuple(
                gone(record) if named >> place & 1 and kind_of(record) != ERASURE else record
                for place, record in enumerate(replica.log)
            )
            after = replica._replace(log=log, file=file, reverts=replica.reverts or log != replica.log)
            if rules.begin_is_durable and rules.durable_before_rewriting:
                after = after._replace(disk=file)
            if log == replica.log and not replica.reverts:
                after = after._replace(file=put(file, row, (offset, entry, DONE)))
            if after != replica:
                yield False, ("{} rewrites its segment", replica), with_replica(world, index, after)

    def fault_steps(self, world: World, index: int) -> Steps:
        replica, faults = world.replicas[index], self.scope.faults
        last = replica.member and not any(
            other.member and other.up for place, other in enumerate(world.replicas) if place != index
        )
        leads = world.has_leader and not index
        if STOP in faults:
            yield True, ("{} STOPS", replica), self.down(world, index, replica, last)
        if CUT in faults:
            for log in {replica.log, replica.log[: replica.synced]}:
                for file in {replica.file, replica.disk}:
                    after = replica._replace(log=log, file=file, disk=file, reverts=False)
                    yield True, ("{} LOSES POWER, {} remains", replica, after), self.down(world, index, after, last)
                    if replica.reverts:
                        old = after._replace(log=(entry_of(0, PERSON), *log[1:]))
                        yield True, ("{} LOSES POWER, {} remains", replica, old), self.down(world, index, old, last)
        fresh = Replica((), 0, 0, (), (), False, False, False, -1, False)
        if not last and OLD_VOLUME in faults:
            old = fresh._replace(log=(entry_of(0, PERSON),), synced=FIRST, high_watermark=FIRST)
            yield True, ("{} comes back WITH AN OLD VOLUME", replica), self.down(world, index, old, last)
        if not last and EMPTY in faults:
            yield True, ("{} comes back WITH AN EMPTY VOLUME", replica), self.down(world, index, fresh, last)
        if leads and MOVE in faults:
            for other in range(1, len(world.replicas)):
                chosen = world.replicas[other]
                if chosen.member and chosen.up and chosen not in world.replicas[1:other]:
                    yield True, ("the leadership MOVES to {}", chosen), elected(world, other)

    def down(self, world: World, index: int, replica: Replica, last: bool) -> World:
        """It leaves the ISR, unless it is the last member: what that one has lost is lost. Then a member is elected."""
        rules = self.rules
        high_watermark = min(FIRST, len(replica.log))
        was = world.replicas[index]
        promised = was.promised and not (rules.confirms_this_registration and world.acknowledged is None)
        if len(replica.log) < len(was.log) and not replica.log[FIRST:]:
            promised = promised and world.acknowledged is None
        away = replica._replace(
            up=False,
            member=last,
            end=-1,
            high_watermark=high_watermark,
            promised=promised,
            file=recovered_file(replica.log, replica.synced, replica.file, rules),
        )
        after = world._replace(replicas=put(world.replicas, index, away))
        if last:
            after = after._replace(committed=world.committed[: len(replica.log)])
        if not world.has_leader:
            return sorted_world(after)
        if index:
            return advanced(sorted_world(after))
        return sorted_world(after._replace(has_leader=False))

    def returned(self, world: World, index: int) -> World:
        return with_replica(world, index, world.replicas[index]._replace(up=True))

    def fetch_steps(self, world: World, index: int) -> Steps:
        replica, leader = world.replicas[index], world.replicas[0]
        if self.rules.durable_before_reported and any(row[0] >= replica.synced for row in replica.file):
            return  # it flushes first
        end = matching_end(replica.log, leader.log)
        if end < len(replica.log):
            yield False, ("{} fetches and diverges at {}", replica, end), self.truncated(world, index, end)
            return
        asked = replica._replace(end=end)
        taken = advanced(world._replace(replicas=put(world.replicas, index, asked)))
        leader = taken.replicas[0]
        if asked.end != replica.end:
            yield False, ("{} fetches, and the answer is lost", replica), sorted_world(taken)
        log, file = asked.log, asked.file
        if end < len(leader.log):
            entry = leader.log[end]
            if hidden(leader, self.rules) >> end & 1 and self.rules.followers_get_filtered:
                entry = gone(entry)
            log = (*log, entry)
            if kind_of(entry) == ERASURE:
                file = (*file, (end, entry, KNOWN))
        watermark = max(asked.high_watermark, min(leader.high_watermark, len(log)))
        after = asked._replace(log=log, file=file, high_watermark=watermark)
        yield False, ("{} fetches", replica), with_replica(taken, taken.replicas.index(asked), after)

    def truncated(self, world: World, index: int, end: int) -> World:
        """The recovery point falls durably; the file changes, and is durable with the next flush."""
        replica = world.replicas[index]
        lost = [stage for offset, _, stage in replica.file if offset >= end]
        promised = replica.promised and end > FIRST
        if self.rules.lost_effect_starts_over and any(lost):
            after = replica._replace(log=(), synced=0, high_watermark=0, file=(), disk=(), reverts=False)
        else:
            after = replica._replace(
                log=replica.log[:end],
                synced=min(replica.synced, end),
                high_watermark=min(replica.high_watermark, end),
                file=tuple(row for row in replica.file if row[0] < end),
            )
        return with_replica(world, index, after._replace(promised=promised))

    def isr_steps(self, world: World, index: int) -> Steps:
        replica, leader = world.replicas[index], world.replicas[0]
        if replica.member:
            out = replica._replace(member=False)
            shrunk = advanced(sorted_world(world._replace(replicas=put(world.replicas, index, out))))
            yield False, ("{} leaves the ISR", replica), shrunk
        elif replica.end >= leader.high_watermark and (
            replica.end >= world.epoch_start or not self.rules.isr_needs_epoch_start
        ):
            yield False, ("{} joins the ISR", replica), with_replica(world, index, replica._replace(member=True))

    def leader_steps(self, world: World) -> Steps:
        leader, rules = world.replicas[0], self.rules
        has_erasure = bool(leader.file)
        if len(leader.log) < END:
            kinds = (OTHER, PERSON) if self.scope.person_again else (OTHER,)
            for kind in kinds:
                log = (*leader.log, entry_of(world.epoch, kind))
                appended = advanced(with_replica(world, 0, leader._replace(log=log)))
                yield False, ("the leader appends a record of {}", ("the person", "another")[kind]), appended
        if world.acknowledged is None and not has_erasure:
            yield from self.search_steps(world)
        if world.acknowledged is None:
            yield from self.confirm_steps(world)
        if not rules.effect_drops_queued_slices and world.acknowledged is None:
            shown = hidden(leader, rules)
            if any(kind_of(entry) == PERSON and not shown >> place & 1 for place, entry in enumerate(leader.log)):
                yield False, ("a consumer's answer is queued",), world._replace(queued=True)
            yield False, ("the queue is sent",), world._replace(queued=False)

    def search_steps(self, world: World) -> Steps:
        leader, rules = world.replicas[0], self.rules
        end = len(leader.log) if rules.searches_to_log_end else leader.high_watermark
        named = sum(1 << place for place, entry in enumerate(leader.log[:end]) if kind_of(entry) == PERSON)
        persons = {(place, epoch_of(entry)) for place, entry in enumerate(world.committed) if kind_of(entry) == PERSON}
        asked = tuple(sorted(persons.union(world.asked)))
        if not named:
            yield False, ("a search finds nothing: ACKNOWLEDGED",), world._replace(acknowledged=(), asked=asked)
        elif rules.appends_in_epoch_of_search:
            yield from self.append_steps(world._replace(asked=asked), named)
        elif world.found is None:
            yield False, ("the leader searches",), world._replace(found=(world.epoch, named), asked=asked)
        if world.found is not None:
            yield from self.append_steps(world._replace(found=None), world.found[1])

    def append_steps(self, world: World, named: int) -> Steps:
        leader = world.replicas[0]
        if len(leader.log) < END:
            entry = entry_of(world.epoch, ERASURE, named)
            after = leader._replace(log=(*leader.log, entry), file=(*leader.file, (len(leader.log), entry, KNOWN)))
            yield False, ("the leader appends an erasure",), advanced(with_replica(world, 0, after))

    def confirmed(self, replica: Replica, offset: int, entry: int) -> bool:
        rules = self.rules
        if rules.durable_before_confirming and offset >= replica.synced:
            return False
        if rules.effect_before_confirming and offset >= replica.high_watermark:
            return False
        has = any(row[:2] == (offset, entry) for row in replica.file)
        return has and not (rules.rewritten_before_confirming and has_named(replica, entry))

    def confirm_steps(self, world: World) -> Steps:
        leader, rules = world.replicas[0], self.rules
        for offset, entry, _ in leader.file:
            if offset >= leader.high_watermark:
                continue
            confirmed = [self.confirmed(replica, offset, entry) for replica in world.replicas]
            if not rules.confirms_this_registration:
                for index, replica in enumerate(world.replicas):
                    if confirmed[index] and not replica.promised:
                        yield (
                            False,
                            ("{} confirms", replica),
                            with_replica(world, index, replica._replace(promised=True)),
                        )
                confirmed = [replica.promised for replica in world.replicas]
            if all(
                done or not ((replica.up and rules.live_replicas_confirm) or (replica.member and rules.members_confirm))
                for replica, done in zip(world.replicas, confirmed, strict=True)
            ):
                replicas = tuple(
                    replica._replace(promised=done) for replica, done in zip(world.replicas, confirmed, strict=True)
                )
                after = world._replace(acknowledged=(offset, entry), replicas=replicas)
                yield False, ("the erasure is ACKNOWLEDGED",), sorted_world(after)

    def violation(self, world: World) -> str | None:
        for index in range(len(world.replicas)):
            if broken := self.wrong_replica(world, index):
                return broken
        if world.has_leader:
            leader = world.replicas[0]
            if matching_end(leader.log, world.committed) < len(world.committed):
                return "R1: the leader has lost a committed record"
            if world.acknowledged and world.acknowledged[1] not in leader.log:
                return "E5: the leader has lost an acknowledged erasure"
        return None

    def wrong_replica(self, world: World, index: int) -> str | None:
        replica, rules = world.replicas[index], self.rules
        asked = world.asked if world.acknowledged is not None else ()
        if world.queued and asked:
            return "E1: an answer with an erased record is sent after the acknowledgement"
        persons = [
            place
            for place, epoch in asked
            if place < len(replica.log) and replica.log[place] == entry_of(epoch, PERSON)
        ]
        if replica.promised and world.acknowledged is not None and (persons or (replica.reverts and asked)):
            return f"E3: {replica} has confirmed and has an erased record"
        served = serves(world, index, rules)
        if not served and not replica.member:
            return None
        end, filtered = readable_end(world, index, rules), hidden(replica, rules)
        if served and any(place < end and not filtered >> place & 1 for place in persons):
            return f"E1: {replica} serves an erased record"
        for place in range(min(end, len(world.committed), len(replica.log))):
            live, here = world.committed[place], replica.log[place]
            if epoch_of(live) != epoch_of(here):
                return f"E4: {replica} has another record at {place}"
            if (
                kind_of(live) in {OTHER, PERSON}
                and (place, epoch_of(live)) not in world.erased
                and (kind_of(here) == GONE or filtered >> place & 1)
            ):
                return f"E2: {replica} doesn't give out the live record at {place}"
        return None

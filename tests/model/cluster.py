"""The model of a cluster as a whole: its start, all its steps, and its invariants.

It leaves out log ends and truncation (`log_ends.py`), waits and their ends (`wakes.py`, `rounds.py`), the files
(`journal.py`, `registration.py`), and topics: there is one delete of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from .cluster_follower import fetch_steps, journal_steps, serves_reads
from .cluster_leader import delete_steps, isr_steps, knowledge_steps
from .cluster_metadata import Steps, controller_steps, image_steps, proposal_steps, registration_steps, visible
from .cluster_state import (
    DURABLE,
    FALLEN,
    NOBODY,
    OLD,
    OLD_DIRECTORY,
    REPLICAS,
    Record,
    Replica,
    Rules,
    Scope,
    Tenure,
    World,
)


class Cluster:
    """Three replicas; broker 0 leads at first."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules = rules
        self.scope = scope

    def starts(self) -> Iterator[tuple[tuple, World]]:
        for first in self.scope.first_isrs:
            isr = tuple(int(broker in first) for broker in REPLICAS)
            record = Record(0, 1, isr, (1, 1, 1), (0, 0, 0), (0, 0, 0))
            tenure = Tenure(0, None, False, (0, 0, 0), (0, 1, 1), (0, 1, 1))
            sides = [Replica(0, OLD, None, int(broker == self.scope.reader), None, None) for broker in REPLICAS]
            yield (
                ("broker 0 leads, ISR {}", list(first)),
                World((record,), (sides[0]._replace(tenure=tenure, trusted=0), sides[1], sides[2]), False),
            )

    def steps(self, world: World, may_fail: bool) -> Steps:
        rules, scope = self.rules, self.scope
        everywhere = all(replica.start == DURABLE for replica in world.replicas)
        if world.acknowledged and everywhere and OLD_DIRECTORY not in scope.faults:
            return  # no violation is possible any more
        yield from journal_steps(world)
        yield from fetch_steps(world, rules, scope, may_fail)
        yield from delete_steps(world, rules)
        yield from knowledge_steps(world, rules)
        yield from image_steps(world, rules)
        yield from isr_steps(world, rules)
        if len(world.history) <= scope.lag:
            yield from proposal_steps(world)
            yield from controller_steps(world, rules, scope, may_fail)
            yield from registration_steps(world, rules, scope, may_fail)

    def violation(self, world: World) -> str | None:
        if any(replica.start == FALLEN for replica in world.replicas):
            return "D5: a log start that was visible fell over a crash"
        if not world.acknowledged:
            return None
        newest = world.history[-1]
        for broker in REPLICAS:
            replica = world.replicas[broker]
            if visible(replica.start, self.rules) or newest.fenced[broker]:
                continue
            if replica.tenure is not None:
                leads = newest.leader == broker and world.history[replica.image].leader_epoch == newest.leader_epoch
                return f"D1: broker {broker}, {'the leader' if leads else 'a former leader'}, shows deleted records"
            if broker == self.scope.reader and serves_reads(world, broker, self.rules):
                return f"D1: broker {broker}, a follower, serves deleted records"
        return self.member_without_the_delete(world)

    def member_without_the_delete(self, world: World) -> str | None:
        """D8, over the maximal ISR.

        A stale directory of an earlier registration cannot be elected, so it does not count.
        """
        newest = world.history[-1]
        leader = world.replicas[newest.leader].tenure
        proposal = leader.proposal if leader is not None and leader.in_flight else None
        for broker in REPLICAS:
            if world.replicas[broker].start == DURABLE:
                continue
            epoch, member = newest.broker_epochs[broker], newest.isr[broker]
            if member != NOBODY and not (newest.stale[broker] and member != epoch):
                return f"D8: {broker} is in the ISR without the acknowledged delete"
            if proposal is not None and proposal[broker] == epoch and not newest.fenced[broker]:
                return f"D8: {broker} is about to join the ISR without the acknowledged delete"
        return None

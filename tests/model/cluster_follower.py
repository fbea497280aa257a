"""The followers' side: fetches, their responses, durable journal entries, and reads of consumers."""

from __future__ import annotations

from .cluster_leader import fetched
from .cluster_metadata import Steps, visible
from .cluster_state import (
    ACCEPTED,
    DURABLE,
    HELD,
    LOST,
    OLD,
    REPLICAS,
    Answer,
    Fetch,
    Replica,
    Rules,
    Scope,
    World,
    put,
    with_answer,
    with_replica,
    with_start,
    with_tenure,
)


def journal_steps(world: World) -> Steps:
    """A journal's entry becomes durable. A crash that leaves the entry readable is this step, followed by the crash."""
    for broker in REPLICAS:
        replica = world.replicas[broker]
        if replica.start == ACCEPTED:
            yield (
                False,
                ("broker {} has the delete on its disk", broker),
                with_replica(world, broker, with_start(replica, DURABLE)),
            )


def fetch_steps(world: World, rules: Rules, scope: Scope, may_fail: bool) -> Steps:
    """A follower fetches; the leader accepts the fetch and responds in the same step.

    The response may arrive much later, or never.
    """
    newest = world.history[-1]
    for follower in REPLICAS:
        replica = world.replicas[follower]
        if replica.tenure is not None or newest.fenced[follower]:
            continue
        if replica.answer is not None:
            yield from answer_steps(world, follower, rules, scope, may_fail)
            continue
        record = world.history[replica.image]
        if record.leader == follower:
            continue
        reported = int(replica.start >= (DURABLE if rules.reported_when_durable else ACCEPTED))
        fetch = Fetch(record.leader_epoch, newest.broker_epochs[follower], reported)
        leader = world.replicas[record.leader]
        if leader.tenure is not None and not newest.fenced[record.leader]:
            tenure = fetched(leader.tenure, world.history[leader.image], follower, fetch, rules)
            if tenure is not None:
                start = int(visible(leader.start, rules))
                reads = follower == scope.reader
                news = reads or (start and replica.start == OLD)
                side = with_answer(replica, Answer(start, reads)) if news else replica
                replicas = put(put(world.replicas, record.leader, with_tenure(leader, tenure)), follower, side)
                label = (
                    "broker {} fetches (log start {}, broker epoch {}); the answer says {}",
                    follower,
                    reported,
                    fetch.broker_epoch,
                    start,
                )
                yield False, label, World(world.history, replicas, world.acknowledged)
        if may_fail and HELD in scope.faults and replica.held is None:
            label = ("A FETCH of {} IS HELD UP (log start {}, broker epoch {})", follower, reported, fetch.broker_epoch)
            yield True, label, with_replica(world, follower, replica._replace(held=fetch))


def answer_steps(world: World, follower: int, rules: Rules, scope: Scope, may_fail: bool) -> Steps:
    """The response arrives: the log start is written to the journal, and from now on the follower has the leader's."""
    replica = world.replicas[follower]
    answer = replica.answer
    assert answer is not None
    start = ACCEPTED if answer.start and replica.start == OLD else replica.start
    trusted = world.history[replica.image].leader_epoch if answer.current else replica.trusted
    after = Replica(replica.image, start, replica.tenure, trusted, None, replica.held)
    yield (
        False,
        ("broker {} gets the answer (the leader's log start {})", follower, answer.start),
        with_replica(world, follower, after),
    )
    if may_fail and LOST in scope.faults:
        yield True, ("THE ANSWER to {} IS LOST", follower), with_replica(world, follower, with_answer(replica, None))


def serves_reads(world: World, follower: int, rules: Rules) -> bool:
    """Rule DR7: does this follower serve consumers?"""
    replica = world.replicas[follower]
    if (
        replica.tenure is not None
        or world.history[-1].fenced[follower]
        or world.history[replica.image].leader == follower
    ):
        return False
    if rules.reads_need_trust and not replica.trusted:
        return False
    return not (rules.reads_wait_for_own_start and replica.start == ACCEPTED)

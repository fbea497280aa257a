"""The leader's side: it accepts and acknowledges deletes, accepts fetches, and proposes ISRs."""

from __future__ import annotations

from .cluster_metadata import Steps, visible
from .cluster_state import (
    ACCEPTED,
    DURABLE,
    NOBODY,
    OLD,
    REPLICAS,
    UNKNOWN,
    Answer,
    Fetch,
    Record,
    Replica,
    Rules,
    Tenure,
    World,
    put,
    with_replica,
    with_start,
    with_tenure,
)


def fetched(tenure: Tenure, record: Record, follower: int, fetch: Fetch, rules: Rules) -> Tenure | None:
    """Returns the leader's state after a fetch, or None if it refuses the fetch. `record` is the leader's image."""
    if fetch.leader_epoch != record.leader_epoch:
        return None
    start, epoch = fetch.start, fetch.broker_epoch
    if rules.reports_of_this_registration:
        if epoch < max(tenure.epochs[follower], record.broker_epochs[follower]):
            return None
    else:
        start, epoch = max(start, tenure.starts[follower]), max(epoch, tenure.epochs[follower])
    return Tenure(
        tenure.floor,
        tenure.proposal,
        tenure.in_flight,
        put(tenure.starts, follower, start),
        put(tenure.epochs, follower, epoch),
        put(tenure.recent, follower, 1),
    )


def everyone_reached(tenure: Tenure, record: Record, leader: int, rules: Rules) -> bool:
    """Rule DR3: every live replica and every member of the maximal ISR has reported the delete."""
    for other in REPLICAS:
        if other == leader:
            continue
        epoch = tenure.epochs[other]
        newer = rules.newer_epoch_is_live and epoch > record.broker_epochs[other]
        live = tenure.recent[other] and (newer or not record.fenced[other])
        proposed = rules.asks_proposed and tenure.proposal is not None and tenure.proposal[other] != NOBODY
        member = record.isr[other] != NOBODY or proposed
        if (live and rules.asks_live) or (member and rules.asks_isr):
            reported = tenure.starts[other] == 1
            if not reported or (rules.reports_of_this_registration and epoch < record.broker_epochs[other]):
                return False
    return True


def delete_steps(world: World, rules: Rules) -> Steps:
    """A client requests the delete, and repeats it: so accepting and acknowledging need no memory of a request."""
    if world.acknowledged:
        return
    newest = world.history[-1]
    for leader in REPLICAS:
        replica = world.replicas[leader]
        tenure = replica.tenure
        if tenure is None or newest.fenced[leader]:
            continue
        if replica.start == OLD:
            yield (
                False,
                ("broker {} accepts the delete", leader),
                with_replica(world, leader, with_start(replica, ACCEPTED)),
            )
            continue
        at_once = not rules.asks_at_or_below_start and visible(replica.start, rules)
        durable = replica.start == DURABLE or not rules.acknowledged_when_durable
        if at_once or (durable and everyone_reached(tenure, world.history[replica.image], leader, rules)):
            floor = tenure.floor if rules.floor in {"none", "elected"} else 1
            replicas = put(world.replicas, leader, with_tenure(replica, tenure._replace(floor=floor)))
            yield False, ("broker {} ACKNOWLEDGES the delete", leader), World(world.history, replicas, True)


def knowledge_steps(world: World, rules: Rules) -> Steps:
    """A delayed fetch arrives; or time passes, and a follower that did not fetch is no longer live."""
    newest = world.history[-1]
    for leader in REPLICAS:
        replica = world.replicas[leader]
        tenure = replica.tenure
        if tenure is None or newest.fenced[leader]:
            continue
        record = world.history[replica.image]
        for follower in REPLICAS:
            if follower == leader:
                continue
            side = world.replicas[follower]
            if side.held is not None:
                after = fetched(tenure, record, follower, side.held, rules)
                if after is not None:
                    replicas = put(
                        put(world.replicas, leader, with_tenure(replica, after)), follower, side._replace(held=None)
                    )
                    label = (
                        "the held fetch of {} arrives (log start {}, broker epoch {})",
                        follower,
                        side.held.start,
                        side.held.broker_epoch,
                    )
                    yield False, label, World(world.history, replicas, world.acknowledged)
            believes = world.history[side.image]
            outdated = believes.leader_epoch < record.leader_epoch and not newest.fenced[follower]
            if tenure.recent[follower] and not (outdated and rules.image_is_fresh):
                yield (
                    False,
                    ("broker {}: {} has not fetched for too long", leader, follower),
                    expired(world, leader, follower, rules),
                )


def expired(world: World, leader: int, follower: int, rules: Rules) -> World:
    """The follower's time is over at the leader. The follower's fetch to this leader was sent before
    that, so its trust ended earlier. A response of another leader proves nothing about time."""
    replica, side = world.replicas[leader], world.replicas[follower]
    tenure = replica.tenure
    assert tenure is not None
    epoch = world.history[replica.image].leader_epoch
    if rules.trust_expires:
        answer = side.answer
        if answer is not None and rules.trust_counts_from_sending:
            answer = Answer(answer.start, False)
        trusted = 0 if side.trusted == epoch else side.trusted
        side = Replica(side.image, side.start, side.tenure, trusted, answer, side.held)
    recent = put(tenure.recent, follower, 0)
    after = Tenure(tenure.floor, tenure.proposal, tenure.in_flight, tenure.starts, tenure.epochs, recent)
    return World(
        world.history, put(put(world.replicas, leader, with_tenure(replica, after)), follower, side), world.acknowledged
    )


def isr_steps(world: World, rules: Rules) -> Steps:
    """The leader proposes to remove slow followers and to add caught-up ones; one proposal at a time, and only on the
    newest record.

    A proposal on an older one is refused at once, so it is left out.
    """
    newest = world.history[-1]
    for leader in REPLICAS:
        replica = world.replicas[leader]
        tenure = replica.tenure
        if tenure is None or newest.fenced[leader] or tenure.proposal is not None:
            continue
        record = world.history[replica.image]
        if any(later[:3] != record[:3] for later in world.history[replica.image :]):
            continue
        floor = int(visible(replica.start, rules)) if rules.floor == "current" else tenure.floor
        for follower in REPLICAS:
            if follower == leader:
                continue
            epoch = tenure.epochs[follower]
            if record.isr[follower] != NOBODY:
                if not tenure.recent[follower] or record.fenced[follower]:
                    proposal = put(record.isr, follower, NOBODY)
                    yield (
                        False,
                        ("broker {} proposes to drop {} from the ISR", leader, follower),
                        proposed(world, leader, proposal),
                    )
            elif tenure.recent[follower] and epoch != UNKNOWN and epoch >= record.broker_epochs[follower]:
                known_fenced = record.fenced[follower] and epoch == record.broker_epochs[follower]
                if not known_fenced and (tenure.starts[follower] >= floor or rules.floor == "none"):
                    proposal = put(record.isr, follower, epoch)
                    yield (
                        False,
                        ("broker {} proposes to add {} to the ISR", leader, follower),
                        proposed(world, leader, proposal),
                    )


def proposed(world: World, leader: int, isr: tuple[int, int, int]) -> World:
    """The compare-and-swap is under way."""
    replica = world.replicas[leader]
    assert replica.tenure is not None
    return with_replica(world, leader, with_tenure(replica, replica.tenure._replace(proposal=isr, in_flight=True)))

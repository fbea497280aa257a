"""The store's side: images that lag, registrations, the controller, and ISR changes that arrive at any time."""

from __future__ import annotations

from collections.abc import Iterator

from .cluster_state import (
    ACCEPTED,
    DURABLE,
    FALLEN,
    LEASE,
    MOVE,
    NOBODY,
    OLD,
    OLD_DIRECTORY,
    REPLICAS,
    RESTART,
    UNKNOWN,
    Isr,
    Record,
    Replica,
    Rules,
    Scope,
    Tenure,
    World,
    put,
    with_replica,
)

Steps = Iterator[tuple[bool, tuple, World]]


def members(isr: Isr) -> list[int]:
    """Returns the replicas in the ISR."""
    return [broker for broker in REPLICAS if isr[broker] != NOBODY]


def visible(start: int, rules: Rules) -> bool:
    """Is the delete visible in this replica?"""
    return start >= (DURABLE if rules.visible_when_durable else ACCEPTED)


def new_tenure(broker: int, replica: Replica, record: Record, rules: Rules) -> Tenure:
    """A leadership begins: nothing was reported, and every unfenced replica counts as just fetched."""
    floor = int(visible(replica.start, rules) and rules.floor != "acknowledged")
    recent = tuple(
        int(rules.new_leader_counts_all and other != broker and not record.fenced[other]) for other in REPLICAS
    )
    return Tenure(floor, None, False, (UNKNOWN,) * 3, (UNKNOWN,) * 3, recent)


def settled(history: tuple[Record, ...], replicas: tuple[Replica, ...], acknowledged: bool) -> World:
    """Leaves out irrelevant state: changes that do not affect a follower, or that all have seen, and fetches that no
    leader accepts.

    A follower acts only on leader and leader epoch, so skipping the others loses nothing.
    """
    changed = []
    for replica in replicas:
        image = replica.image
        if replica.tenure is None:
            while image + 1 < len(history) and history[image].leader_epoch == history[image + 1].leader_epoch:
                image += 1
        changed.append(image)
    oldest = min(changed)
    epoch = min(history[image].leader_epoch for image in changed)
    sides = []
    for replica, image in zip(replicas, changed, strict=True):
        held = replica.held if replica.held is None or replica.held.leader_epoch >= epoch else None
        if image - oldest != replica.image or held is not replica.held:
            sides.append(Replica(image - oldest, replica.start, replica.tenure, replica.trusted, replica.answer, held))
        else:
            sides.append(replica)
    return World(history[oldest:], tuple(sides), acknowledged)


def stored(world: World, record: Record, writer: int | None = None) -> World:
    """The store accepts a change. ISR changes under way that compare the previous record are refused."""
    replicas = world.replicas
    if record[:3] != world.history[-1][:3]:
        for broker in REPLICAS:
            tenure = replicas[broker].tenure
            if tenure is not None and tenure.in_flight:
                proposal = tenure.proposal if broker == writer else None
                replicas = put(
                    replicas,
                    broker,
                    replicas[broker]._replace(tenure=tenure._replace(proposal=proposal, in_flight=False)),
                )
    return settled((*world.history, record), replicas, world.acknowledged)


def image_steps(world: World, rules: Rules) -> Steps:
    """A broker sees the next change of the store."""
    newest = world.history[-1]
    for broker in REPLICAS:
        replica = world.replicas[broker]
        if replica.image + 1 == len(world.history):
            continue
        before, after = world.history[replica.image], world.history[replica.image + 1]
        if before.leader_epoch != after.leader_epoch:
            tenure = None
            if (
                after.leader == broker
                and not newest.fenced[broker]
                and after.isr[broker] == newest.broker_epochs[broker]
            ):
                tenure = new_tenure(broker, replica, after, rules)
            trusted = 0 if rules.trust_of_this_leader_epoch else replica.trusted
            seen = Replica(replica.image + 1, replica.start, tenure, trusted, None, replica.held)
            label = ("broker {} sees that {} leads in leader epoch {}", broker, after.leader, after.leader_epoch)
        else:
            tenure = tenure_after(replica.tenure, before, after, broker, rules)
            seen = replica._replace(image=replica.image + 1, tenure=tenure)
            label = (
                "broker {} sees ISR {}, fenced {}, broker epochs {}",
                broker,
                members(after.isr),
                after.fenced,
                after.broker_epochs,
            )
        yield False, label, settled(world.history, put(world.replicas, broker, seen), world.acknowledged)


def tenure_after(tenure: Tenure, before: Record, after: Record, broker: int, rules: Rules) -> Tenure:
    """Advances an image within a leader epoch; drops a decided proposal and reports of old registrations."""
    starts, epochs = tenure.starts, tenure.epochs
    if rules.reports_of_this_registration:
        for other in REPLICAS:
            if other != broker and after.broker_epochs[other] > epochs[other]:
                starts, epochs = put(starts, other, UNKNOWN), put(epochs, other, UNKNOWN)
    decided = before.isr != after.isr
    proposal, in_flight = (None, False) if decided else (tenure.proposal, tenure.in_flight)
    return Tenure(tenure.floor, proposal, in_flight, starts, epochs, tenure.recent)


def registered(world: World, broker: int, rules: Rules, *, restart: bool, old_directory: bool = False) -> World:
    """The broker gets a new epoch: with its memory, after a crash with durable data, or with an old disk."""
    record = world.history[-1]
    epoch = record.broker_epochs[broker] + 1
    isr = record.isr
    if isr[broker] != NOBODY and not rules.isr_of_this_registration:
        isr = put(isr, broker, epoch)
    stale = 1 if old_directory and rules.stale_is_marked else record.stale[broker]
    record = record._replace(
        isr=isr,
        broker_epochs=put(record.broker_epochs, broker, epoch),
        fenced=put(record.fenced, broker, 0),
        stale=put(record.stale, broker, stale),
    )
    replica = world.replicas[broker]
    tenure = None if rules.leads_of_this_registration or restart else replica.tenure
    if restart:
        start = OLD if old_directory or replica.start < DURABLE else DURABLE
        if start == OLD and visible(replica.start, rules) and not old_directory:
            start = FALLEN
        replica = Replica(len(world.history), start, None, 0, None, replica.held)
    else:
        trusted = 0 if rules.trust_of_this_registration else replica.trusted
        answer = replica.answer
        if answer is not None and rules.trust_of_this_registration:
            answer = answer._replace(current=False)
        replica = replica._replace(tenure=tenure, trusted=trusted, answer=answer)
    if restart and not rules.leads_of_this_registration and record.leader == broker:
        replica = replica._replace(tenure=new_tenure(broker, replica, record, rules))
    return stored(with_replica(world, broker, replica), record)


def registration_steps(world: World, rules: Rules, scope: Scope, may_fail: bool) -> Steps:
    """Leases end, brokers restart and return."""
    record = world.history[-1]
    for broker in REPLICAS:
        epoch = record.broker_epochs[broker] + 1
        if may_fail and OLD_DIRECTORY in scope.faults:
            after = registered(world, broker, rules, restart=True, old_directory=True)
            yield True, ("broker {} RESTARTS WITH AN OLD DIRECTORY, broker epoch {}", broker, epoch), after
        if record.fenced[broker]:
            yield (
                False,
                ("broker {} returns, broker epoch {}", broker, epoch),
                registered(world, broker, rules, restart=False),
            )
            if RESTART in scope.faults:
                yield (
                    False,
                    ("broker {} returns after a crash, broker epoch {}", broker, epoch),
                    registered(world, broker, rules, restart=True),
                )
            continue
        if may_fail and RESTART in scope.faults:
            yield (
                True,
                ("broker {} RESTARTS before its lease ends, broker epoch {}", broker, epoch),
                registered(world, broker, rules, restart=True),
            )
        if may_fail and LEASE in scope.faults:
            replica = world.replicas[broker]
            tenure = None if rules.leads_of_this_registration else replica.tenure
            trusted = 0 if rules.trust_of_this_registration else replica.trusted
            lost = with_replica(world, broker, replica._replace(tenure=tenure, trusted=trusted))
            yield (
                True,
                ("broker {} LOSES ITS LEASE", broker),
                stored(lost, record._replace(fenced=put(record.fenced, broker, 1))),
            )


def controller_steps(world: World, rules: Rules, scope: Scope, may_fail: bool) -> Steps:
    """The controller drops members whose registration is over, and elects.

    Its writes compare everything that they rely on.
    """
    record = world.history[-1]
    isr = members(record.isr)
    good = [
        broker for broker in isr if record.isr[broker] == record.broker_epochs[broker] and not record.fenced[broker]
    ]
    kept = tuple(record.isr[broker] if broker in good else NOBODY for broker in REPLICAS)
    epoch = record.leader_epoch + 1
    if len(good) == len(isr):
        if may_fail and MOVE in scope.faults:
            for broker in good:
                if broker != record.leader:
                    moved = record._replace(leader=broker, leader_epoch=epoch)
                    yield (
                        True,
                        ("the leadership MOVES to broker {} as planned, leader epoch {}", broker, epoch),
                        stored(world, moved),
                    )
    elif record.leader in good:
        yield False, ("the controller drops all but {} from the ISR", good), stored(world, record._replace(isr=kept))
    elif good:
        for broker in good:
            elected = record._replace(leader=broker, leader_epoch=epoch, isr=kept)
            yield (
                False,
                ("the controller elects {}, leader epoch {}, ISR {}", broker, epoch, good),
                stored(world, elected),
            )
    else:
        for broker in isr:
            if not record.fenced[broker] and not record.stale[broker]:
                alone = put((NOBODY,) * 3, broker, record.broker_epochs[broker])
                elected = record._replace(leader=broker, leader_epoch=epoch, isr=alone)
                yield (
                    False,
                    ("no member of the ISR lives; its new registration {} is elected, leader epoch {}", broker, epoch),
                    stored(world, elected),
                )


def proposal_steps(world: World) -> Steps:
    """An ISR change reaches the store, even if its sender has failed."""
    record = world.history[-1]
    for broker in REPLICAS:
        tenure = world.replicas[broker].tenure
        if tenure is None or not tenure.in_flight or tenure.proposal is None:
            continue
        added = [other for other in members(tenure.proposal) if record.isr[other] == NOBODY]
        if all(tenure.proposal[other] == record.broker_epochs[other] and not record.fenced[other] for other in added):
            stale = tuple(int(record.stale[other] and other not in added) for other in REPLICAS)
            after = stored(world, record._replace(isr=tenure.proposal, stale=stale), writer=broker)
            yield False, ("the store takes ISR {}", members(tenure.proposal)), after
        else:
            refused = world.replicas[broker]._replace(tenure=tenure._replace(proposal=None, in_flight=False))
            yield False, ("the store refuses the ISR change of broker {}", broker), with_replica(world, broker, refused)

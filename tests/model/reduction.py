"""Reduces the states of the cluster model: one state represents all that differ only in what no rule reads.

A state is replaced by its *canonical* form before the search compares it with those it has seen:

- **Numbers of epochs.** Rules compare leader epochs with each other, and the epochs of one broker with each other, and
  draw new ones above
  all that exist. So only their order matters: those that a state still has are renumbered 1, 2, 3 ...
- **Entries that are never read.** What a leader's tables say of the leader itself, and which directories were old in
  any record but the
  newest.
- **Names of brokers.** No rule has a preference for a broker, and a reader is a broker of its own kind. So a state in
  which brokers have
  exchanged all that they are and have is the same state. Brokers are sorted by what they are; where some are alike in
  that, each order is
  tried, and the least taken.

Each of these maps is a bisimulation: states with the same canonical form have the same violations, and each step of one
is a step of the other, as many faults each, to states with the same canonical form again. So a violation is reachable
from one exactly if it is from the other, with as many faults and steps. `test_reduction` compares both searches
wherever the full one ends soon.

Names of brokers in a trace hold for one step: the next may call them otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations, product
from typing import Any, Final

from .cluster import Cluster
from .cluster_metadata import Steps
from .cluster_state import NOBODY, REPLICAS, Fetch, Record, Replica, Tenure, Triple, World

Names = tuple[int, int, int]
"""The old name of each broker, by new name."""

Numbers = dict[int, int]
"""The number of each epoch."""

FORMS_MAX: Final = 200_000
"""The cache size for canonical forms; most states are reached by several steps."""

_UNREAD = 0
_ALL_KNOWN = (0, 0, 0)


class ReducedModel:
    """The model of a cluster with canonical states only."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.reader = cluster.scope.reader
        self._forms: dict[World, World] = {}

    def starts(self) -> Iterator[tuple[tuple, World]]:
        for label, world in self.cluster.starts():
            yield label, canonical(world, self.reader)

    def steps(self, world: World, may_fail: bool) -> Steps:
        forms = self._forms
        if len(forms) > FORMS_MAX:
            forms.clear()
        for fault, label, after in self.cluster.steps(world, may_fail):
            form = forms.get(after)
            if form is None:
                form = forms[after] = canonical(after, self.reader)
            yield fault, label, form

    def violation(self, world: World) -> str | None:
        return self.cluster.violation(world)


def canonical(world: World, reader: int | None) -> World:
    """The state that stands for this one. `reader` keeps its name."""
    numbered = renumbered(world)
    candidates = [renamed(numbered, names) for names in orders(numbered, reader)]
    return candidates[0] if len(candidates) == 1 else min(candidates, key=sortable)


# Numbers


def renumbered(world: World) -> World:
    """The same state with the least epochs, and nothing in it that is never read."""
    leader = numbers(leader_epochs(world))
    of_broker = [numbers(broker_epochs(world, broker)) for broker in REPLICAS]
    newest = len(world.history) - 1
    history = tuple(
        Record(
            record.leader,
            leader[record.leader_epoch],
            mapped(record.isr, of_broker),
            mapped(record.broker_epochs, of_broker),
            record.fenced,
            record.stale if index == newest else _ALL_KNOWN,
        )
        for index, record in enumerate(world.history)
    )
    replicas = tuple(
        renumbered_replica(broker, replica, leader, of_broker) for broker, replica in enumerate(world.replicas)
    )
    return World(history, replicas, world.acknowledged)  # as many as before


def leader_epochs(world: World) -> tuple[int, ...]:
    """Returns all leader epochs in the state; 0 stands for none."""
    found = [record.leader_epoch for record in world.history]
    for replica in world.replicas:
        found.append(replica.trusted)
        if replica.held is not None:
            found.append(replica.held.leader_epoch)
    return tuple(found)


def broker_epochs(world: World, broker: int) -> tuple[int, ...]:
    """Returns all epochs of this broker in the state; 0 and less stand for none."""
    found = []
    for record in world.history:
        found.append(record.broker_epochs[broker])
        found.append(record.isr[broker])
    for other, replica in enumerate(world.replicas):
        tenure = replica.tenure
        if tenure is not None:
            if other != broker:
                found.append(tenure.epochs[broker])
            if tenure.proposal is not None:
                found.append(tenure.proposal[broker])
    held = world.replicas[broker].held
    if held is not None:
        found.append(held.broker_epoch)
    return tuple(found)


@cache
def numbers(epochs: tuple[int, ...]) -> Numbers:
    """Numbers the epochs from 1 up, in order. Values that stand for none are unchanged."""
    found: Numbers = {}
    number = 0
    for epoch in sorted(set(epochs)):
        if epoch > NOBODY:
            number += 1
            found[epoch] = number
        else:
            found[epoch] = epoch
    return found


def mapped(values: Triple, of_broker: list[Numbers]) -> Triple:
    """Returns a triple of broker epochs, by number."""
    first, second, third = of_broker
    return first.get(values[0], values[0]), second.get(values[1], values[1]), third.get(values[2], values[2])


def renumbered_replica(broker: int, replica: Replica, leader: Numbers, of_broker: list[Numbers]) -> Replica:
    """Returns a broker's side, by number."""
    tenure, held = replica.tenure, replica.held
    if tenure is not None:
        proposal = None if tenure.proposal is None else mapped(tenure.proposal, of_broker)
        starts, epochs = without(tenure.starts, broker), mapped(without(tenure.epochs, broker), of_broker)
        tenure = Tenure(tenure.floor, proposal, tenure.in_flight, starts, epochs, without(tenure.recent, broker))
    if held is not None:
        held = Fetch(leader[held.leader_epoch], of_broker[broker][held.broker_epoch], held.start)
    return Replica(replica.image, replica.start, tenure, leader[replica.trusted], replica.answer, held)


def without(values: Triple, broker: int) -> Triple:
    """Returns a leader's table without the entry about itself."""
    first, second, third = values
    if broker == 0:
        return _UNREAD, second, third
    return (first, _UNREAD, third) if broker == 1 else (first, second, _UNREAD)


# Names


def orders(world: World, reader: int | None) -> list[Names]:
    """Returns the orders of the brokers by their states; several if some are equal."""
    free = [broker for broker in REPLICAS if broker != reader]
    looks = {broker: glance(world, broker) for broker in free}
    if len(set(looks.values())) < len(free):
        looks = {broker: (looks[broker], look(world, broker)) for broker in free}
    free.sort(key=looks.__getitem__)
    groups: list[list[int]] = []
    for broker in free:
        if groups and looks[groups[-1][0]] == looks[broker]:
            groups[-1].append(broker)
        else:
            groups.append([broker])
    found = []
    for parts in product(*(permutations(group) for group in groups)):
        names = [broker for part in parts for broker in part]
        if reader is not None:
            names.insert(reader, reader)
        found.append((names[0], names[1], names[2]))
    return found


def glance(world: World, broker: int) -> tuple[Any, ...]:
    """Returns what can be seen of a broker without the names of others."""
    replica, newest = world.replicas[broker], world.history[-1]
    tenure = replica.tenure
    return (
        newest.leader == broker,
        tenure is not None,
        newest.isr[broker],
        newest.broker_epochs[broker],
        replica.start,
        replica.image,
    )


def look(world: World, broker: int) -> tuple[Any, ...]:
    """Returns the rest of a broker's state."""
    replica, newest = world.replicas[broker], world.history[-1]
    tenure, answer, held = replica.tenure, replica.answer, replica.held
    leaders = [(other, side.tenure) for other, side in enumerate(world.replicas) if side.tenure is not None]
    told: tuple[int, ...] = ()
    if len(leaders) == 1 and leaders[0][0] != broker:
        of_leader = leaders[0][1]
        told = of_leader.starts[broker], of_leader.epochs[broker], of_leader.recent[broker]
    return (
        newest.fenced[broker],
        newest.stale[broker],
        replica.trusted,
        () if tenure is None else (tenure.floor, tenure.in_flight, tenure.proposal is None),
        () if answer is None else (answer.start, answer.current),
        () if held is None else (held.leader_epoch, held.broker_epoch, held.start),
        told,
    )


def renamed(world: World, names: Names) -> World:
    """The same state with other names."""
    if names == REPLICAS:
        return world
    first, second, third = names
    name_of = {first: 0, second: 1, third: 2}

    def moved(values: Triple) -> Triple:
        return values[first], values[second], values[third]

    history = tuple(
        Record(name_of[leader], epoch, moved(isr), moved(epochs), moved(fenced), moved(stale))
        for leader, epoch, isr, epochs, fenced, stale in world.history
    )
    replicas = []
    for old in names:
        replica = world.replicas[old]
        tenure = replica.tenure
        if tenure is not None:
            proposal = None if tenure.proposal is None else moved(tenure.proposal)
            tenure = Tenure(
                tenure.floor,
                proposal,
                tenure.in_flight,
                moved(tenure.starts),
                moved(tenure.epochs),
                moved(tenure.recent),
            )
            replica = replica._replace(tenure=tenure)
        replicas.append(replica)
    return World(history, tuple(replicas), world.acknowledged)  # as many as before


def sortable(value: Any) -> Any:
    """Returns a state in a form that has an order: None is less than everything."""
    if value is None:
        return ()
    if isinstance(value, tuple):
        return (1, *map(sortable, value))
    return (0, value)

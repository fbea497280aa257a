"""The state of the model of a cluster: one partition with three replicas, one delete, and a store whose changes brokers
see later.

A log start is OLD (below the delete), ACCEPTED (the journal has the delete, the disk perhaps not) or DURABLE; FALLEN is
a state that no rule allows: it was visible, and a crash undid it. Log ends are left out here (`log_ends.py` has them):
a replica that has fetched has every record. Time is only order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

REPLICAS = (0, 1, 2)
FALLEN, OLD, ACCEPTED, DURABLE = -1, 0, 1, 2

UNKNOWN = -1
"""The log start or broker epoch of a replica if the leader has none."""

NOBODY = 0
"""The entry of a replica that is not in the ISR. Members have their broker epoch, which is at least 1."""

Isr = tuple[int, int, int]
Triple = tuple[int, int, int]


class Record(NamedTuple):
    """The store's record of the partition (first three) and of the brokers."""

    leader: int
    leader_epoch: int
    isr: Isr
    broker_epochs: Triple
    fenced: Triple
    stale: Triple


class Tenure(NamedTuple):
    """A broker's state while it considers itself leader. The triples are by replica."""

    floor: int
    proposal: Isr | None
    in_flight: bool
    starts: Triple
    epochs: Triple
    recent: Triple


class Answer(NamedTuple):
    """A response under way to a follower.

    `current`: it is for a fetch of this registration that was sent not too long ago.
    """

    start: int
    current: bool


class Fetch(NamedTuple):
    """A fetch that is delayed in the network, while its sender has stopped waiting."""

    leader_epoch: int
    broker_epoch: int
    start: int


class Replica(NamedTuple):
    """One broker's side.

    `image` counts from the oldest record that some broker still believes; `trusted` is the leader epoch in which
    it received what follower reads need, or 0."""

    image: int
    start: int
    tenure: Tenure | None
    trusted: int
    answer: Answer | None
    held: Fetch | None


class World(NamedTuple):
    """A state: the store's last changes, newest last, the brokers, and whether the delete is acknowledged."""

    history: tuple[Record, ...]
    replicas: tuple[Replica, Replica, Replica]
    acknowledged: bool


def put(values: tuple, index: int, value: object) -> tuple:
    """Returns the same tuple with one entry changed."""
    return (*values[:index], value, *values[index + 1 :])


def with_replica(world: World, broker: int, replica: Replica) -> World:
    """The same world with one broker's side changed."""
    return World(world.history, put(world.replicas, broker, replica), world.acknowledged)


def with_start(replica: Replica, start: int) -> Replica:
    """Returns the same with another log start. (A search calls these three most, so they don't use `_replace`.)"""
    return Replica(replica.image, start, replica.tenure, replica.trusted, replica.answer, replica.held)


def with_tenure(replica: Replica, tenure: Tenure) -> Replica:
    """Returns the same with another leader state."""
    return Replica(replica.image, replica.start, tenure, replica.trusted, replica.answer, replica.held)


def with_answer(replica: Replica, answer: Answer | None) -> Replica:
    """Returns the same with another response under way."""
    return Replica(replica.image, replica.start, replica.tenure, replica.trusted, answer, replica.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of deletion, each as one switch. docs/adr/0006-model-of-deletes.md explains each."""

    # DR1: durable before it is visible, reported, acknowledged
    visible_when_durable: bool = True
    reported_when_durable: bool = True
    acknowledged_when_durable: bool = True
    # DR2: which replicas join the ISR
    floor: str = "elected or acknowledged"  # or "elected", "acknowledged", "none"
    # DR3: which replicas must have the delete
    asks_isr: bool = True
    asks_live: bool = True
    asks_proposed: bool = True
    reports_of_this_registration: bool = True
    newer_epoch_is_live: bool = True
    new_leader_counts_all: bool = True
    asks_at_or_below_start: bool = True
    # DR7: reads from followers
    trust_of_this_registration: bool = True
    trust_of_this_leader_epoch: bool = True
    trust_expires: bool = True
    trust_counts_from_sending: bool = True
    reads_wait_for_own_start: bool = True
    reads_need_trust: bool = True
    # Incarnations, for DR8
    isr_of_this_registration: bool = True
    leads_of_this_registration: bool = True
    stale_is_marked: bool = True
    # a broker that cannot prove that its image is fresh fences itself
    image_is_fresh: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The possible events. The search counts faults; a fault that is not in `faults` never happens.

    Serving consumers changes no state, so it is enough to check one follower, the `reader`: the others are equal by
    symmetry.
    """

    faults: frozenset[str]
    lag: int = 1
    reader: int | None = 2
    first_isrs: tuple[tuple[int, ...], ...] = ((0,), (0, 1), (0, 2), (0, 1, 2))


LEASE, RESTART, OLD_DIRECTORY, HELD, LOST, MOVE = (
    "lease lost",
    "restart",
    "old directory",
    "held fetch",
    "lost answer",
    "planned move",
)
ALL_FAULTS = frozenset((LEASE, RESTART, OLD_DIRECTORY, HELD, LOST, MOVE))

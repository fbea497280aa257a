"""The machines, store, clients and chronicle of a run, for faults, loads and checks.

A seed determines everything, in one order: a number drawn elsewhere changes the run. It does not decide which faults
strike, or when a run ends (`cluster_simulation`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias

from lowtide.metadata.image import PartitionImage
from lowtide.protocol.types import BrokerId
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.cluster_client import ClusterClient, Excuses
from lowtide.simulation.cluster_invariants import ClusterInvariants
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.neighbours import SharedMachine
from lowtide.simulation.shared_store import SharedStore

TOPIC: Final = "sim"
UNCLEAN_SHARE: Final = 0.1
"""The share of runs that allow unclean elections."""

ERASURES: Final = "erasures"

OnDeath: TypeAlias = Callable[[Machine], None]

KINDS: Final = (
    "partitions",
    "groups",
    "transactions",
    "consumers",
    "retention",
    "compaction",
    "authorization",
    "erasing",
    "streams",
    ERASURES,
)
"""The kinds of clients.

Clients of partitions produce, read and delete; those of groups join and commit offsets; consumers are members of
consumer groups (KIP-848); brokers delete from topics with retention; compacted topics have keys; ACLs change while
brokers apply them; replicas are asked to erase deleted records; members of streams groups (KIP-1071) share tasks;
records of a key are erased, where it is asked for by name. Runs with only erasures are small: one partition, short
segments, no deletes, and all brokers are new enough.
"""

COORDINATED_SHARE: Final = 0.1
"""The share of runs with groups, and of those with transactions."""

OLD_VERSION_KEY: Final = "inter.broker.protocol.version"
OLD_VERSION: Final = "0.10.2"
"""A version whose followers do not report log start offsets."""


class ClusterWorld:
    """The cluster of one run."""

    topics: ClassVar[tuple[str, ...]] = (TOPIC,)
    """The topics that faults strike, if they exist."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        *,
        unclean: bool | None,
        kinds: tuple[str, ...] | None,
        directories: tuple[str, ...] | None = None,
    ) -> None:
        """Arguments that are None are random."""
        self.loop = loop
        self.seed = seed
        self.random = Random(seed)
        self.chronicle = Chronicle(loop.time)
        self.effects: Counter[str] = Counter()
        self.busy: set[str] = set()
        """Topics with a fault in progress."""
        self.excuses = Excuses(loop)
        self.shared = SharedStore(loop, Random(seed + 1))
        self.flushes = self.random.random() < 0.5  # noqa: PLR2004
        drawn = ("/a",) if self.random.random() < 0.8 else ("/a", "/b")  # noqa: PLR2004
        self.directories = drawn if directories is None else directories
        self.brokers = self.random.choice((3, 3, 3, 3, 3, 3, 4, 2, 1))
        self.partitions = self.random.choice((1, 2))
        if kinds == (ERASURES,):
            self.partitions = 1
        is_old = self.random.random() < 0.1 and kinds != (ERASURES,)  # noqa: PLR2004
        self.versions = {OLD_VERSION_KEY: OLD_VERSION} if is_old else {}
        self.unclean = Random(seed + 2).random() < UNCLEAN_SHARE if unclean is None else unclean
        """Whether unclean elections are allowed."""
        self.kinds = _kinds(Random(seed + 3)) if kinds is None else kinds
        self.machines: list[Machine] = [self._machine(broker_id) for broker_id in range(1, self.brokers + 1)]
        self.invariants = ClusterInvariants(
            self.machines, self.shared, self.chronicle, flushes=self.flushes, unclean=self.unclean
        )
        self.on_death: OnDeath = _ignore
        """Called after a process or a machine died."""
        self.loads: list[PartitionLoad] = []

    @property
    def replication_factor(self) -> int:
        return min(3, self.brokers)

    def note(self, what: str) -> None:
        self.chronicle.note("FAULT", what)

    def client(self, name: str) -> ClusterClient:
        return ClusterClient(
            name=name,
            machines=self.machines,
            random=Random(self.random.getrandbits(64)),
            loop=self.loop,
            excuses=self.excuses,
            chronicle=self.chronicle,
        )

    def more_settings(self) -> dict[str, str]:
        """Returns the broker settings for the kinds of clients."""
        return {}

    def _machine(self, broker_id: BrokerId) -> Machine:
        settings = {
            "log.dirs": ",".join(self.directories),
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            "replica.lag.time.max.ms": "1500",
            "replica.fetch.wait.max.ms": "300",
            "replica.fetch.backoff.ms": "100",
            "broker.rack": f"rack-{broker_id % 2}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        }
        settings |= self.versions
        settings |= self.more_settings()
        if self.flushes:
            settings |= {"log.flush.interval.messages": "1"}
        if self.unclean:
            settings |= {"unclean.leader.election.enable": "true", "unclean.leader.election.interval.ms": "1000"}
        machine = SharedMachine(
            loop=self.loop,
            shared=self.shared,
            broker_id=broker_id,
            random=Random(self.random.getrandbits(64)),
            settings=settings,
            chronicle=self.chronicle,
            effects=self.effects,
        )
        machine.clock.rate = self.random.uniform(0.97, 1.03)
        return machine

    # What faults use

    async def sleep(self, least_s: float, most_s: float) -> None:
        """Waits for a random time."""
        await asyncio.sleep(self.random.uniform(least_s, most_s))

    def shuffled(self) -> list[Machine]:
        return self.random.sample(self.machines, len(self.machines))

    def pick(self, state: State) -> Machine | None:
        """Returns a machine in this state, or None."""
        found = [machine for machine in self.machines if machine.state is state]
        return self.random.choice(found) if found else None

    def some_partition(self) -> tuple[str, int, PartitionImage]:
        """Returns the store's state of a partition of the main topic, or of coordinators or their clients."""
        name = self.random.choice([name for name in self.topics if name in self.shared.image.topics])
        number = self.random.randrange(len(self.shared.image.topics[name].partitions))
        return name, number, self.shared.image.topics[name].partitions[number]

    def partition(self, topic: str, number: int) -> PartitionImage | None:
        known = self.shared.image.topics.get(topic)
        return None if known is None else known.partitions[number]

    def leader_and_follower(self) -> tuple[Machine | None, Machine | None]:
        """Returns the leader of some partition and a follower, both up."""
        _, _, state = self.some_partition()
        up = {
            machine.broker_id: machine for machine in self.machines if machine.state is State.UP and machine.is_running
        }
        followers = [broker_id for broker_id in state.replicas if broker_id != state.leader and broker_id in up]
        return up.get(state.leader), up[self.random.choice(followers)] if followers else None

    def may_lose_disk(self, machine: Machine) -> bool:
        """Returns whether every partition has an intact ISR member on another disk."""
        for topic in self.shared.image.topics.values():
            for number, state in enumerate(topic.partitions):
                others = [
                    (member, epoch)
                    for member, epoch in zip(state.isr, state.isr_epochs, strict=True)
                    if member != machine.broker_id
                ]
                sound = [
                    member
                    for member, epoch in others
                    if self.invariants.promises.is_sound(member, topic.topic_id, number, epoch)
                ]
                if machine.broker_id in state.replicas and not sound:
                    return False
        return True

    def cut_off(self, machine: Machine) -> None:
        """Cuts all links between a broker and the others."""
        for other in self.machines:
            if other is not machine:
                self.loop.network.cut(machine.host, other.host)

    def reach_again(self, machine: Machine) -> None:
        """Restores the links; held messages arrive."""
        for other in self.machines:
            if other is not machine:
                self.loop.network.heal(machine.host, other.host)

    def kill(self, machine: Machine, *, power: bool = False) -> None:
        """Kills the process, or the machine."""
        self.excuses.note(machine.broker_id, after_s=1.0)
        self.invariants.watches.on_death(machine, power=power)
        self.invariants.promises.on_death(machine, power=power)
        machine.kill(power=power)
        self.on_death(machine)

    def start(self, machine: Machine) -> None:
        if machine.state is State.DOWN:
            self.excuses.note(machine.broker_id, after_s=1.0)
            machine.start()

    async def stay_down(self, machine: Machine) -> None:
        """Restarts it soon, or after its session has expired."""
        await self.sleep(*((0.01, 0.4) if self.random.random() < 0.5 else (1.0, 4.0)))  # noqa: PLR2004
        self.start(machine)

    async def revive(self, machine: Machine) -> None:
        """Starts it if its broker has failed."""
        await self.sleep(0.05, 0.5)
        self.start(machine)

    async def until_up(self, machine: Machine) -> None:
        for _ in range(300):
            if machine.state is State.UP:
                return
            await asyncio.sleep(0.01)

    def excuse_all(self) -> None:
        """Excuses all brokers."""
        for machine in self.machines:
            self.excuses.begin(machine.broker_id)

    def pardon_all(self, *, after_s: float) -> None:
        """Ends all excuses soon."""
        for machine in self.machines:
            self.excuses.end(machine.broker_id, after_s=after_s)


def both(first: OnDeath, second: OnDeath) -> OnDeath:
    """Returns a function that calls both."""

    def call(machine: Machine) -> None:
        first(machine)
        second(machine)

    return call


def _ignore(_machine: Machine) -> None:
    """Does nothing."""


def _kinds(random: Random) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS[:-1] if kind == "partitions" or random.random() < COORDINATED_SHARE)

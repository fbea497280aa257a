"""What a run of a simulated cluster happens to: its machines, store, clients and chronicle, as faults, loads and checks see them.

Everything is drawn from one seed, in one order: a number that is drawn elsewhere is another run. It does not say what strikes, or when a
run ends (`cluster_simulation`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final

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
"""The share of runs in which elections may be unclean."""

KINDS: Final = (
    "partitions",
    "groups",
    "transactions",
    "consumers",
    "retention",
    "compaction",
    "authorization",
    "erasing",
)
"""What clients do: those of partitions produce, read and delete, those of groups join and commit offsets; consumers are the members of
groups whose partitions the broker assigns; of a topic with retention brokers delete by themselves; a compacted one has keys;
access rules change while brokers decide by them; replicas are asked to erase what is deleted."""

COORDINATED_SHARE: Final = 0.1
"""The share of runs with groups, and of those with transactions."""

OLD_VERSION_KEY: Final = "inter.broker.protocol.version"
OLD_VERSION: Final = "0.10.2"
"""One in which followers don't tell their log starts."""


class ClusterWorld:
    """The cluster of one run."""

    topics: ClassVar[tuple[str, ...]] = (TOPIC,)
    """What faults strike, where it is there."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        *,
        unclean: bool | None,
        kinds: tuple[str, ...] | None,
        directories: tuple[str, ...] | None = None,
    ) -> None:
        """What is None is left to chance."""
        self.loop = loop
        self.seed = seed
        self.random = Random(seed)
        self.chronicle = Chronicle(loop.time)
        self.effects: Counter[str] = Counter()
        self.busy: set[str] = set()
        """Topics that a fault is at work on."""
        self.excuses = Excuses(loop)
        self.shared = SharedStore(loop, Random(seed + 1))
        self.flushes = self.random.random() < 0.5  # noqa: PLR2004
        drawn = ("/a",) if self.random.random() < 0.8 else ("/a", "/b")  # noqa: PLR2004
        self.directories = drawn if directories is None else directories
        self.brokers = self.random.choice((3, 3, 3, 3, 3, 3, 4, 2, 1))
        self.partitions = self.random.choice((1, 2))
        self.versions = {OLD_VERSION_KEY: OLD_VERSION} if self.random.random() < 0.1 else {}  # noqa: PLR2004
        self.unclean = Random(seed + 2).random() < UNCLEAN_SHARE if unclean is None else unclean
        """Whether a replica that isn't in sync may lead where no other can."""
        self.kinds = _kinds(Random(seed + 3)) if kinds is None else kinds
        self.machines: list[Machine] = [self._machine(broker_id) for broker_id in range(1, self.brokers + 1)]
        self.invariants = ClusterInvariants(
            self.machines, self.shared, self.chronicle, flushes=self.flushes, unclean=self.unclean
        )
        self.invariants.erases_on_request = "erasing" in self.kinds
        self.on_death: Callable[[Machine], None] = _ignore
        """Called when a process, or a machine, has died."""
        self.loads: list[PartitionLoad] = []

    @property
    def replication_factor(self) -> int:
        """Of the topics."""
        return min(3, self.brokers)

    def note(self, what: str) -> None:
        """Tell the chronicle of a fault."""
        self.chronicle.note("FAULT", what)

    def client(self, name: str) -> ClusterClient:
        """A new client."""
        return ClusterClient(
            name=name,
            machines=self.machines,
            random=Random(self.random.getrandbits(64)),
            loop=self.loop,
            excuses=self.excuses,
            chronicle=self.chronicle,
        )

    def more_settings(self) -> dict[str, str]:
        """Settings of brokers that the work of clients needs."""
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
        """Let a random time pass."""
        await asyncio.sleep(self.random.uniform(least_s, most_s))

    def shuffled(self) -> list[Machine]:
        """All machines, in any order."""
        return self.random.sample(self.machines, len(self.machines))

    def pick(self, state: State) -> Machine | None:
        """A machine in this state, if there is one."""
        found = [machine for machine in self.machines if machine.state is state]
        return self.random.choice(found) if found else None

    def some_partition(self) -> tuple[str, int, PartitionImage]:
        """A partition of the main topic, or of one that coordinators or their clients use, as the store has it."""
        name = self.random.choice([name for name in self.topics if name in self.shared.image.topics])
        number = self.random.randrange(len(self.shared.image.topics[name].partitions))
        return name, number, self.shared.image.topics[name].partitions[number]

    def partition(self, topic: str, number: int) -> PartitionImage | None:
        """A partition as the store has it now."""
        known = self.shared.image.topics.get(topic)
        return None if known is None else known.partitions[number]

    def leader_and_follower(self) -> tuple[Machine | None, Machine | None]:
        """The machine that leads some partition, and one of its others, both up."""
        _, _, state = self.some_partition()
        up = {
            machine.broker_id: machine for machine in self.machines if machine.state is State.UP and machine.is_running
        }
        followers = [broker_id for broker_id in state.replicas if broker_id != state.leader and broker_id in up]
        return up.get(state.leader), up[self.random.choice(followers)] if followers else None

    def may_lose_disk(self, machine: Machine) -> bool:
        """Whether every partition has a member of its ISR on another disk that nothing was lost from."""
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
        """Nothing travels any more between a broker and the others, either way."""
        for other in self.machines:
            if other is not machine:
                self.loop.network.cut(machine.host, other.host)

    def reach_again(self, machine: Machine) -> None:
        """Undo it; what was held back arrives."""
        for other in self.machines:
            if other is not machine:
                self.loop.network.heal(machine.host, other.host)

    def kill(self, machine: Machine, *, power: bool = False) -> None:
        """The process dies, or the machine."""
        self.excuses.note(machine.broker_id, after_s=1.0)
        self.invariants.watches.on_death(machine, power=power)
        self.invariants.promises.on_death(machine, power=power)
        machine.kill(power=power)
        self.on_death(machine)

    def start(self, machine: Machine) -> None:
        """Start it, if it is down."""
        if machine.state is State.DOWN:
            self.excuses.note(machine.broker_id, after_s=1.0)
            machine.start()

    async def stay_down(self, machine: Machine) -> None:
        """Start it again soon, or when its session has ended."""
        await self.sleep(*((0.01, 0.4) if self.random.random() < 0.5 else (1.0, 4.0)))  # noqa: PLR2004
        self.start(machine)

    async def revive(self, machine: Machine) -> None:
        """Start it, if it has given up."""
        await self.sleep(0.05, 0.5)
        self.start(machine)

    async def until_up(self, machine: Machine) -> None:
        """Wait a while for it to serve."""
        for _ in range(300):
            if machine.state is State.UP:
                return
            await asyncio.sleep(0.01)

    def excuse_all(self) -> None:
        """No broker needs to answer in time."""
        for machine in self.machines:
            self.excuses.begin(machine.broker_id)

    def pardon_all(self, *, after_s: float) -> None:
        """All brokers must again, soon."""
        for machine in self.machines:
            self.excuses.end(machine.broker_id, after_s=after_s)


def _ignore(_machine: Machine) -> None:
    """It concerns no client."""


def _kinds(random: Random) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind == "partitions" or random.random() < COORDINATED_SHARE)

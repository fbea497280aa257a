"""A whole cluster on virtual time: brokers, metadata store, clients, faults, and continuous checks.

A seed determines the number of brokers, their configuration, the clients and the faults, event by event, and a
violation reports the last events. The brokers are real ones over simulated ports.

A run: the cluster starts, topics are created, clients begin; faults strike (`faults`), one by one and together; then
all is healed, and in time all partitions must be led, written, in sync and equal on all replicas, an idle delete must
take two round trips and two commits (rule DR5), and everything is read back. The clients of every second partition stop
before the last faults end, so that replicas must catch up without writes.

Rules DR1 to DR8 are those of docs/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from typing import Final

from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation import cluster_end
from lowtide.simulation.authorization_work import SETTINGS as AUTHORIZATION_SETTINGS
from lowtide.simulation.authorization_work import AuthorizationWork
from lowtide.simulation.client import WireClient
from lowtide.simulation.cluster_world import ERASURES, KINDS, OLD_VERSION_KEY, TOPIC, ClusterWorld, both
from lowtide.simulation.coordinator_work import (
    COMPACTION_SETTINGS,
    CONSUMED_SETTINGS,
    COORDINATOR_SETTINGS,
    LEDGER_TOPIC,
    WORK_TOPIC,
    CoordinatorWork,
)
from lowtide.simulation.erasing_work import ErasingWork
from lowtide.simulation.faults import AGAINST_ERASURES, ALONE, FAULTS, WHERE_NAMED
from lowtide.simulation.forgetting_work import FORGETTING_ACTORS, ForgettingWork
from lowtide.simulation.history import HistoryError
from lowtide.simulation.keyed_load import cleaner_settings, forgotten_configs, main_load
from lowtide.simulation.machines import State
from lowtide.simulation.shared_machines import share_machines
from lowtide.simulation.standing_work import STANDING_SETTINGS
from lowtide.simulation.transaction_load import TRANSACTION_SETTINGS
from lowtide.simulation.upkeep_work import UpkeepWork

START_LIMIT_S: Final = 60.0
ACTORS: Final = ("producer", "idempotent producer", "deleter", "reader")
PIPELINING_ACTORS: Final = ("producer", "pipelined producer", "deleter", "reader")
CONSUMED_ACTORS: Final = ("producer",)
CONSUMED_PAUSE: Final = 3.0
"""The additional time that these wait."""


OPERATIONS_MIN: Final = 300
EFFECTS_MIN: Final = 3
STRIKES_MAX: Final = 40
"""The maximum number of faults in a run, which ends earlier with enough answered requests and effective faults."""

COORDINATED_TOPICS: Final = (GROUP_TOPIC, WORK_TOPIC, TRANSACTION_TOPIC, LEDGER_TOPIC)
"""Topics that faults also strike, if they exist."""

UNCLEAN: Final = ("unclean election", "unclean election that lost records", "unclean election that took deletes back")

_LOOK_S: Final = 0.05
_CREATE_TOPICS_VERSION: Final = 7
_LAST_EVENTS: Final = 150


class ClusterSimulation(ClusterWorld):
    """One run."""

    topics = (TOPIC, *COORDINATED_TOPICS)

    def __init__(  # noqa: PLR0913  parts of a run, each by its name
        self,
        loop: SimulatedLoop,
        seed: int,
        *,
        faults: tuple[str, ...] | None = None,
        unclean: bool | None = None,
        kinds: tuple[str, ...] | None = None,
        erases: bool | None = None,
        directories: tuple[str, ...] | None = None,
        pipelines: bool | None = None,
        compacts: bool | None = None,
    ) -> None:
        """`faults` are the only ones to strike, in any order; by default all except `WHERE_NAMED`.

        `unclean`, `directories` (per broker) and `kinds` (`KINDS`) are random by default. Topics erase deleted records
        if `erases`; by default in every third random run. Idempotent producers have several batches in flight if
        `pipelines`; by default in every fourth random run. In every fifth seed the network delivers what arrives within
        a millisecond at once, and there is a crowd of producers.
        """
        is_free = kinds is None and faults is None
        self.main_actors: tuple[str, ...] = (
            PIPELINING_ACTORS if (is_free and seed % 4 == 2 if pipelines is None else pipelines) else ACTORS  # noqa: PLR2004
        )
        if is_free and seed % 5 == 3:  # noqa: PLR2004
            loop.network.arrival_step_ms = 1.0
            self.main_actors = (*self.main_actors, "crowd")
        if kinds == (ERASURES,):
            self.main_actors = FORGETTING_ACTORS
        self.compacts = kinds == (ERASURES,) and (seed % 3 == 2 if compacts is None else compacts)  # noqa: PLR2004
        self._cleaners = Random(seed + 9)
        self.erases = seed % 3 == 1 and kinds is None and faults is None if erases is None else erases
        super().__init__(loop, seed, unclean=unclean, kinds=kinds, directories=directories)
        self._configs = forgotten_configs(self._cleaners) if self.compacts else {}
        self.loads += [
            main_load(number, self.client, Random(self.random.getrandbits(64)), self.invariants, self._configs)
            for number in range(self.partitions)
        ]
        self.invariants.promises.loads[TOPIC] = {load.partition: load for load in self.loads}
        self.idle = self.loads[seed % 2 :: 2]
        """The partitions whose clients stop before the last faults end."""
        self.work = CoordinatorWork(self, Random(seed + 4), self.kinds)
        self.invariants.promises.on_void = self._on_void
        if self.work.loads:
            self.invariants.promises.loads[WORK_TOPIC] = {load.partition: load for load in self.work.loads}
            self.loads += self.work.loads
        self.upkeep = UpkeepWork(self, self.work, Random(seed + 5), self.kinds)
        for load in self.upkeep.loads:
            self.invariants.promises.loads.setdefault(load.topic, {})[load.partition] = load
            self.loads.append(load)
        self.authorization = AuthorizationWork(self, Random(seed + 6), self.kinds)
        self.erasing = ErasingWork(self, Random(seed + 7), self.kinds)
        forgotten = [load for load in self.loads if load.topic == TOPIC and ERASURES in self.kinds]
        stands = kinds == (ERASURES,) and faults is None and not self.compacts and seed % 4 == 0
        self.forgetting = ForgettingWork(self, forgotten, Random(seed + 8), Random(seed + 10) if stands else None)
        self.on_death = both(self.erasing.on_death, self.forgetting.on_death)
        if faults is not None and "leaders are given" in faults:
            share_machines(self)
        known = FAULTS | (AGAINST_ERASURES if kinds == (ERASURES,) else {})
        self._faults = known if faults is None else {name: (known | WHERE_NAMED)[name] for name in faults}
        self._tasks: list[asyncio.Task[None]] = []
        self._striking = Counter[str]()
        self._is_alone = False
        self.states = Counter[str]()
        """The states that faults struck: two overlapping faults, or the number of live brokers and replicas."""

    @property
    def operations(self) -> int:
        return sum(sum(load.counts.values()) for load in self.loads) + self.work.counts.total()

    def check(self) -> None:
        if self.chronicle.violation is None:
            self.invariants.parked.now_s = self.loop.time()
            self.invariants.check(self.loop.ran)
            self.erasing.check()

    def _on_void(self, topic: str, number: int) -> None:
        self.work.on_void(topic, number)
        self.upkeep.on_void(topic, number)

    def more_settings(self) -> dict[str, str]:
        """Returns the settings for the kinds of clients of this run."""
        settings: dict[str, str] = {}
        factor = str(self.replication_factor)
        if set(self.kinds) - {"partitions", "authorization", "erasing", "erasures"}:
            settings |= COORDINATOR_SETTINGS | COMPACTION_SETTINGS | {"offsets.topic.replication.factor": factor}
        if "groups" in self.kinds or "retention" in self.kinds:
            settings |= CONSUMED_SETTINGS
        if "transactions" in self.kinds or "compaction" in self.kinds:
            settings |= TRANSACTION_SETTINGS | {"transaction.state.log.replication.factor": factor}
        if self.kinds == (ERASURES,):
            settings |= STANDING_SETTINGS
        if self.compacts:
            settings |= cleaner_settings(self._cleaners)
        if "authorization" in self.kinds:
            settings |= AUTHORIZATION_SETTINGS
        return settings

    # A run

    async def run(self, *, strikes: int | None = None, pause_s: float = 0.25) -> None:
        """Runs with this number of faults (a few, if None), then heals and checks the end."""
        await self.begin()
        stop, stop_idle = asyncio.Event(), asyncio.Event()
        for load in self.loads:
            until = stop_idle if load in self.idle else stop
            is_work = load.topic == WORK_TOPIC
            is_main = load.topic == TOPIC and not {"partitions", ERASURES} & set(self.kinds)
            for actor in load.actors(CONSUMED_ACTORS if is_work else () if is_main else self.main_actors):
                self._spawn(
                    actor.run(until=until, pause_s=pause_s * CONSUMED_PAUSE if is_work else pause_s),
                    f"actor {load.partition}",
                )
        for client in (
            *self.work.actors(),
            *self.upkeep.actors(),
            *self.authorization.actors(),
            *self.erasing.actors(),
            *self.forgetting.actors(),
        ):
            self._spawn(client.run(until=stop, pause_s=pause_s), client.key)
        actors = len(self._tasks)
        await self.sleep(0.2, 1.0)
        fewest = OPERATIONS_MIN // (2 if self.kinds == (ERASURES,) else 1)
        wanted = strikes if strikes is not None else self.random.randint(4, 8)
        for strike in range(STRIKES_MAX):
            enough = self.effects.total() >= EFFECTS_MIN and self.operations >= fewest
            if strike >= wanted and (enough or strikes is not None):
                break
            self.chronicle.raise_violation()
            self._spawn(self._strike(), "fault")
            await self.sleep(0.05, 1.5)
        stop_idle.set()
        while pending := [task for task in self._tasks[actors:] if not task.done()]:
            await asyncio.wait(pending, timeout=0.5)
            self.chronicle.raise_violation()
        await self.heal()
        await self.sleep(0.2, 0.8)
        await self.work.come_to_rest()
        stop.set()
        await asyncio.wait(self._tasks)
        self.chronicle.raise_violation()
        for kind in UNCLEAN:
            self.effects[kind] += self.chronicle.counts[kind]
        await cluster_end.check_end(self, self.idle, self._check_work)
        self.chronicle.raise_violation()

    async def _check_work(self) -> None:
        await self.work.check_end()
        await self.upkeep.check_end()
        await self.erasing.check_end()
        await self.forgetting.check_end()

    async def begin(self) -> None:
        """Starts all brokers, and creates the topic."""
        for machine in self.machines:
            machine.start()
        await self._until(lambda: all(machine.state is State.UP for machine in self.machines), "all brokers serve")
        configs = {
            "internal.segment.bytes": "700" if self.kinds == (ERASURES,) else "1500",
            "index.interval.bytes": "400",
            "file.delete.delay.ms": "50",
            "min.insync.replicas": str(min(2, self.replication_factor)),
        }
        if self.flushes:
            configs["flush.messages"] = "1"
        if self.erases:
            configs["lowtide.delete.erase"] = "true"
        await self._create(TOPIC, self.partitions, configs | self._configs)
        for name, partitions in self.work.topics().items():
            await self._create(name, partitions, configs | self.work.topic_configs(name))
        for name, (partitions, own) in self.upkeep.topics().items():
            await self._create(name, partitions, configs | own)
        for name, partitions in self.authorization.topics().items():
            await self._create(name, partitions, configs)
        await self._until(self._is_created, "all replicas of the topic are in sync")
        await self.work.begin()
        self.forgetting.begin()

    async def heal(self) -> None:
        """Ends all faults, and starts all brokers."""
        self.note("all is healed")
        self.loop.network.delay_range_ms = (0.05, 1.0)
        self.loop.network.heal()
        self.shared.start()
        for machine in self.machines:
            machine.heal()
            machine.resume()
            machine.clock.set_wall(0)
            self.excuses.note(machine.broker_id, after_s=3.0)
            machine.check_directories()
            is_old = machine.settings.pop(OLD_VERSION_KEY, None) is not None
            if is_old or machine.has_offline_directory:
                self.kill(machine)
        await self._until(self._all_are_up, "all brokers serve again")

    def _all_are_up(self) -> bool:
        """Returns whether all serve, and restarts failed brokers."""
        for machine in self.machines:
            self.start(machine)
        return all(machine.state is State.UP for machine in self.machines)

    def _spawn(self, coro: object, name: str) -> None:
        self._tasks.append(self.loop.create_task(coro, name=name))  # type: ignore[arg-type]

    async def _strike(self) -> None:
        names = list(self._faults)
        name = self.random.choices(names, [self._faults[each][1] for each in names])[0]
        is_alone = name in ALONE
        while self._is_alone or (is_alone and self._striking.total()):  # noqa: ASYNC110 - virtual time: looking again costs nothing
            await asyncio.sleep(_LOOK_S)
        self.chronicle.counts[name] += 1
        self._note_states(name)
        self._striking[name] += 1
        self._is_alone = is_alone
        await self._faults[name][0](self)
        self._striking[name] -= 1
        self._is_alone = False

    def _note_states(self, fault: str) -> None:
        """Records the state that a fault is about to strike."""
        self.states.update(f"{fault} during {other}" for other in +self._striking)
        serving = sum(machine.state is State.UP for machine in self.machines)
        topic = self.shared.image.topics.get(TOPIC)
        for partition in topic.partitions if topic is not None else ():
            lead = "led" if partition.has_leader else "not led"
            self.states[f"{fault}: {serving} of {self.brokers} brokers, {len(partition.isr)} in sync, {lead}"] += 1

    def _is_created(self) -> bool:
        topic = self.shared.image.topics.get(TOPIC)
        return topic is not None and all(
            len(state.isr) == self.replication_factor and state.has_leader for state in topic.partitions
        )

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        ids = [machine.broker_id for machine in self.machines]
        assignments = [
            CreatableReplicaAssignment(
                partition_index=number,
                broker_ids=[ids[(number + index) % len(ids)] for index in range(self.replication_factor)],
            )
            for number in range(partitions)
        ]
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        code = ErrorCode.NOT_CONTROLLER
        while code in {
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.REQUEST_TIMED_OUT,
        }:  # No time to tell each other who is controller.
            client = await WireClient.connect(*self.random.choice(self.machines).address)
            answer = await client.request(
                CreateTopicsRequest(topics=[topic], timeout_ms=10_000), _CREATE_TOPICS_VERSION
            )
            client.close()
            code = ErrorCode(answer.topics[0].error_code)
        assert code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}, answer.topics[0]

    async def _until(self, condition: object, what: str, limit_s: float = START_LIMIT_S) -> None:
        await cluster_end.until(self, condition, what, limit_s)  # type: ignore[arg-type]


class ClusterLoop(SimulatedLoop):
    """A simulated loop that checks a cluster whenever time advances."""

    cluster: ClusterSimulation | None = None

    def advance(self, timeout_s: float | None) -> None:
        if self.cluster is not None and (timeout_s is None or timeout_s > 0):
            self.cluster.check()
        super().advance(timeout_s)


def simulate_cluster(  # noqa: PLR0913  as of `ClusterSimulation`
    seed: int,
    *,
    faults: tuple[str, ...] | None = None,
    strikes: int | None = None,
    unclean: bool | None = None,
    kinds: tuple[str, ...] | None = None,
    erases: bool | None = None,
    directories: tuple[str, ...] | None = None,
    pipelines: bool | None = None,
    compacts: bool | None = None,
) -> ClusterSimulation:
    """Runs one seed. Errors: HistoryError, or any exception, with the seed and the last events."""
    with closing(ClusterLoop(seed, time_limit_s=1800.0)) as loop:
        cluster = loop.cluster = ClusterSimulation(
            loop,
            seed,
            faults=faults,
            unclean=unclean,
            kinds=kinds,
            erases=erases,
            directories=directories,
            pipelines=pipelines,
            compacts=compacts,
        )
        try:
            loop.run_until_complete(cluster.run(strikes=strikes))
            if failures := loop.failures():
                raise BaseExceptionGroup(f"unhandled failures, with seed {seed}", failures)  # noqa: TRY301 - noted below
        except BaseException as error:
            if cluster.chronicle.violation is not None and error is not cluster.chronicle.violation:
                error.add_note(f"after: {cluster.chronicle.violation}")
            error.add_note(cluster.chronicle.text(_LAST_EVENTS))
            error.add_note(f"seed {seed}, at virtual time {loop.time():.4f} s, faults {dict(cluster.chronicle.counts)}")
            raise
    return cluster


__all__ = ["KINDS", "ClusterSimulation", "HistoryError", "simulate_cluster"]

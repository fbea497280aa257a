"""A large cluster on virtual time, with the real code, and the cost of each stage.

A *stage* is something that happens to the cluster (`scale` runs them). Measured are its virtual time, the transactions
and keys written to the metadata store, and the CPU time of each broker's own code.

Virtual time excludes computing: a plan over all partitions takes no time. So the CPU time of the busiest broker is
measured too; a stage on real machines takes between the virtual time and the sum of both. Only message delays are
random. It checks no promises (`cluster_simulation` does).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from lowtide.broker.network.routing.request_times import RequestTimes
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage, PartitionImage
from lowtide.metadata.store import Batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.process_figures import ProcessFiguresReader
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.simulated_node import SimulatedNode
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import PREFIX, SharedStore

REPLICAS: Final = 3
PARTITIONS_PER_REQUEST: Final = 1000

STAGE_LIMIT_S: Final = 600.0
"""The virtual time after which a stage has failed."""

_LOOK_S: Final = 0.1
_CREATE_TOPICS_VERSION: Final = 7
_REQUEST_MS: Final = 60_000


class ScaleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the cluster. Racks have nearly equal numbers of brokers."""

    brokers: int = 5
    racks: int = 3
    topics: int = 3
    partitions_per_topic: int = 100
    groups: int = 20
    restarts: int = 2
    """The number of brokers that restart, one by one."""
    returns_rack: bool = True
    """Whether the rack returns in the end. Memory of dead brokers stays until the run ends."""
    rolling: bool = False
    """Whether there are only restarts, one by one, followed by preferred elections."""
    session_ms: int = 4000
    seed: int = 0

    @property
    def partitions(self) -> int:
        return self.topics * self.partitions_per_topic


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a stage. `broker_cpu_s` is that of all brokers, `busiest_cpu_s` that of the busiest.

    `host` is the broker of the stage, or empty; `controller_cpu_s` is that of the last controller.
    """

    name: str
    virtual_s: float
    transactions: int
    keys_written: dict[str, int]
    broker_cpu_s: float
    busiest_cpu_s: float
    controller_cpu_s: float
    host: str
    host_cpu_s: float
    requests: dict[str, int]
    """Answered requests by API, without brokers that start and end within the stage."""
    resident_mb: float
    counts: dict[str, float] = {}


class NodeCpu(set[SimulatedNode | None]):
    """Replaces `SimulatedLoop.ran`, which gets the node of each callback: sums the CPU time by node."""

    def __init__(self) -> None:
        super().__init__()
        self.ns: Counter[str] = Counter()
        self._current: SimulatedNode | None = None
        self._since_ns = time.thread_time_ns()

    def add(self, node: SimulatedNode | None) -> None:
        """Counts a callback of `node` that is about to run."""
        if node is not self._current:
            self.charge()
            self._current = node

    def clear(self) -> None:
        """Clears the counts, because time advances."""

    def charge(self) -> None:
        now_ns = time.thread_time_ns()
        self.ns["" if self._current is None else self._current.name] += now_ns - self._since_ns
        self._since_ns = now_ns


class ScaleCluster:
    """The brokers, their store, and their measurements."""

    def __init__(self, loop: SimulatedLoop, spec: ScaleSpec, settings: dict[str, str]) -> None:
        """`settings` are those of all brokers, besides those of their machines."""
        self.loop = loop
        self.spec = spec
        self.shared = SharedStore(loop, Random(spec.seed + 1))
        self.chronicle = Chronicle(loop.time)
        self.stages: list[Stage] = []
        self.cpu = NodeCpu()
        self.keys_written: Counter[str] = Counter()
        self.transactions = 0
        self._read_figures = ProcessFiguresReader()
        loop.ran = self.cpu
        random = Random(spec.seed)
        self.machines = [
            Machine(
                loop=loop,
                shared=self.shared,
                broker_id=broker_id,
                random=Random(random.getrandbits(64)),
                settings={
                    "log.dirs": "/a",
                    "broker.rack": f"rack-{broker_id % spec.racks}",
                    "broker.session.timeout.ms": str(spec.session_ms),
                    "auto.create.topics.enable": "false",
                }
                | settings,
                chronicle=self.chronicle,
                effects=Counter(),
            )
            for broker_id in range(1, spec.brokers + 1)
        ]

    @property
    def image(self) -> MetadataImage:
        self.shared.follow(self._on_batch)
        return self.shared.image

    def _on_batch(self, _before: MetadataImage, batch: Batch) -> None:
        self.transactions += 1
        for event in batch.events:
            name = event.key.removeprefix(PREFIX)
            self.keys_written[(name.split(b"/", 1)[0] if b"/" in name else name).decode()] += 1

    def partitions(self) -> list[tuple[str, int, PartitionImage]]:
        return [
            (topic.name, number, state)
            for topic in self.image.topics.values()
            for number, state in enumerate(topic.partitions)
        ]

    def machine(self, broker_id: BrokerId) -> Machine:
        return self.machines[broker_id - 1]

    def up(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.state is State.UP]

    def serving(self) -> list[Machine]:
        """Returns the machines whose brokers serve, also those that are about to stop."""
        return [machine for machine in self.machines if machine.state in {State.UP, State.STOPPING}]

    # Stages

    async def stage(self, name: str, work: Coroutine[Any, Any, dict[str, float] | None], host: str = "") -> Stage:
        """Does the work, and measures it. Errors: those of the work; HistoryError if a broker reported a bug."""
        gc.collect()
        self.cpu.charge()
        before_ns, began_s, served = Counter(self.cpu.ns), self.loop.time(), self._served()
        requests = _answered(served)
        _ = self.image
        transactions, written = self.transactions, Counter(self.keys_written)
        counts = await work
        virtual_s = self.loop.time() - began_s
        self.cpu.charge()
        spent = {host: (ns - before_ns[host]) / 1e9 for host, ns in self.cpu.ns.items() if host}
        _ = self.image
        self.chronicle.raise_violation()
        controller = self.image.controller_id
        stage = Stage(
            name=name,
            virtual_s=virtual_s,
            transactions=self.transactions - transactions,
            keys_written=dict(self.keys_written - written),
            broker_cpu_s=sum(spent.values()),
            busiest_cpu_s=max(spent.values(), default=0.0),
            controller_cpu_s=spent.get(self.machine(controller).host, 0.0) if controller > 0 else 0.0,
            host=host,
            host_cpu_s=spent.get(host, 0.0),
            requests=dict(_answered(served | self._served()) - requests),
            resident_mb=self._read_figures().resident_bytes / 1e6,
            counts=counts or {},
        )
        self.stages.append(stage)
        return stage

    def _served(self) -> dict[tuple[str, int], RequestTimes]:
        """Returns the request counters of each life, by host and life."""
        return {
            (machine.host, machine.lives): machine.broker.serving.host.dispatcher.times
            for machine in self.machines
            if machine.broker is not None and machine.broker.serving is not None
        }

    async def until(self, condition: Callable[[], bool], what: str, look_s: float = _LOOK_S) -> None:
        """Waits. Errors: TimeoutError after a long time."""
        limit_s = self.loop.time() + STAGE_LIMIT_S
        while not condition():
            if self.loop.time() > limit_s:
                raise TimeoutError(f"not within {STAGE_LIMIT_S} s of virtual time: {what}")
            await asyncio.sleep(look_s)

    # What the cluster is asked

    async def start(self) -> None:
        for machine in self.machines:
            machine.start()
        await self.until(lambda: len(self.up()) == len(self.machines), "all brokers serve")
        await self.until(lambda: self.image.controller_id > 0, "there is a controller")

    def controller(self) -> Machine:
        return self.machine(self.image.controller_id)

    async def ask(self, machine: Machine, request: Any, version: int) -> Any:
        """Sends one request over its own connection."""
        client = await WireClient.connect(*machine.address)
        try:
            return await client.request(request, version)
        finally:
            client.close()

    async def create_topics(self, names: list[str], partitions: int, configs: dict[str, str] | None = None) -> None:
        """Creates topics, some thousand partitions per request."""
        count = max(PARTITIONS_PER_REQUEST // partitions, 1)
        rows = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        for start in range(0, len(names), count):
            topics = [
                CreatableTopic(
                    name=name, num_partitions=partitions, replication_factor=REPLICAS, assignments=[], configs=rows
                )
                for name in names[start : start + count]
            ]
            answer = await self.ask(
                self.controller(), CreateTopicsRequest(topics=topics, timeout_ms=_REQUEST_MS), _CREATE_TOPICS_VERSION
            )
            errors = {ErrorCode(row.error_code) for row in answer.topics} - {ErrorCode.NONE}
            assert not errors, errors

    # How the cluster is

    def leaderless(self) -> int:
        return len(self.without_leader(self.partitions()))

    def without_leader(self, among: Iterable[tuple[str, int, PartitionImage]]) -> list[TopicPartition]:
        """Returns partitions whose leader is dead, or does not know that it leads."""
        up = {machine.broker_id: machine.broker.replicas for machine in self.serving() if machine.broker is not None}
        found = []
        for name, number, state in among:
            replicas, key = up.get(state.leader), TopicPartition(name, number)
            partition = None if replicas is None else replicas.partitions.get(key)
            if partition is None or not partition.is_leader or partition.leader_epoch != state.leader_epoch:
                found.append(key)
        return found

    def out_of_sync(self) -> int:
        """Returns partitions that lack an ISR member."""
        return sum(len(state.isr) < len(state.replicas) for _, _, state in self.partitions())


def _answered(served: dict[tuple[str, int], RequestTimes]) -> Counter[str]:
    answered: Counter[str] = Counter()
    for times in served.values():
        for name, of_api in times.by_name.items():
            answered[name] += of_api.count
    return answered


PARTITIONS: Final = keys.PARTITIONS.decode().rstrip("/")

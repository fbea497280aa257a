"""What a broker reports of its load, on time that stands still while it is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.lifecycle.leader_loads import BYTES_IN_PER_REQUEST, BYTES_OUT_PER_REQUEST, LeaderLoads, cost
from lowtide.metadata.errors import ConflictError
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.types import TopicPartition
from lowtide.replication.leader_balance import REPORT_INTERVAL_MS, BrokerLoad, LeaderMove, PartitionLoad
from lowtide.replication.topic_traffic import Traffic
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.thread_usage import ThreadUsage

TOPIC_ID = b"T" * 16
ALONE, PAIR, FOREIGN, FOLLOWED, OUT_OF_SYNC = range(5)
"""Partitions of topic t."""
ASSIGNED = {ALONE: (1,), PAIR: (1, 2), FOREIGN: (1, 9), FOLLOWED: (2, 1), OUT_OF_SYNC: (1, 2)}
MOVE = LeaderMove("t", PAIR, 1, 2, 0.2, 0.9, 0.1)


class Broker:
    """Broker 1 of a machine of brokers 1 to 3; broker 9 is elsewhere."""

    def __init__(self, loop: SimulatedLoop) -> None:
        states = tuple(
            PartitionImage(replicas, isr, tuple(10 * each for each in isr), replicas[0], 5, 7, 900)
            for replicas, isr in ((each, (1,) if number == OUT_OF_SYNC else each) for number, each in ASSIGNED.items())
        )
        self.image = MetadataImage(
            revision=1000,
            brokers={each: BrokerImage(each, 10 * each, (), in_controlled_shutdown=False) for each in (1, 2, 3, 9)},
            topics={"t": TopicImage("t", TOPIC_ID, states, {}, 500)},
            topic_names={TOPIC_ID: "t"},
        )
        self.traffic = {number: Traffic() for number in ASSIGNED}
        self.reported: list[BrokerLoad] = []
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.commits: list[Any] = []
        self.error: Exception | None = None
        self.cpu_ns = 0
        self.gone: tuple[int, ...] = ()
        self.loop = loop
        hosted = {
            TopicPartition("t", number): SimpleNamespace(
                topic_partition=TopicPartition("t", number),
                topic_id=TOPIC_ID,
                is_leader=state.leader == 1,
                is_internal=False,
                replicas=state.replicas,
                in_sync_replicas=state.isr,
                traffic=self.traffic[number],
            )
            for number, state in enumerate(states)
        }
        context: Any = SimpleNamespace(
            metadata=SimpleNamespace(image=self.image, broker_id=1, commit=self._commit),
            replicas=SimpleNamespace(partitions=hosted),
            tasks=SimpleNamespace(spawn=lambda coroutine, name: loop.create_task(coroutine, name=name)),
            log=SimpleNamespace(info=lambda event, **fields: self.lines.append((event, fields))),
        )
        neighbours: Any = SimpleNamespace(machine=(1, 2, 3), away=lambda: self.gone, report=self.reported.append)
        ports: Any = SimpleNamespace(
            loop=loop, clock=SimulatedClock(loop), read_usage=lambda: ThreadUsage(self.cpu_ns, 0, 0)
        )
        self.loads = LeaderLoads(context, ports, neighbours, full=0.5)

    async def _commit(self, plan: Any) -> int:
        if self.error is not None:
            raise self.error
        self.commits.append(plan)
        return 1

    async def pass_time(self, busy: float, **requests: int) -> BrokerLoad:
        """Until the next report."""
        await wait(self.loop, REPORT_INTERVAL_MS)
        self.cpu_ns += round(busy * REPORT_INTERVAL_MS * 1_000_000)
        for name, count in requests.items():
            self.traffic[globals()[name.upper()]].produce_requests += count
        self.loads.on_tick()
        return self.reported[-1]


async def wait(loop: SimulatedLoop, for_ms: int) -> None:
    future = loop.create_future()
    loop.call_later(for_ms / 1000, future.set_result, None)
    await future


def simulate(act: Any) -> None:
    async def scenario(loop: SimulatedLoop) -> None:
        await act(Broker(loop))

    run_simulation(scenario, seed=1)


def test_what_a_partition_costs() -> None:
    """In requests; replication costs as clients do."""
    traffic = Traffic()
    traffic.produce_requests, traffic.fetch_requests = 3, 4
    traffic.bytes_in, traffic.replication_bytes_in = BYTES_IN_PER_REQUEST, 2 * BYTES_IN_PER_REQUEST
    traffic.bytes_out, traffic.replication_bytes_out = 4 * BYTES_OUT_PER_REQUEST, BYTES_OUT_PER_REQUEST
    traffic.failed_fetch_requests = traffic.messages_in = 100
    assert cost(traffic) == 7 + 3 + 5


def test_a_broker_that_is_not_full_says_how_busy_it_is() -> None:
    """And looks at no partition."""

    async def act(broker: Broker) -> None:
        assert await broker.pass_time(0.25, pair=10) == BrokerLoad(1, 0.25)
        assert await broker.pass_time(0.125, pair=10) == BrokerLoad(1, 0.125)
        broker.loads.on_tick()
        assert len(broker.reported) == 2, "not before it is time again"

    simulate(act)


def test_a_full_broker_says_what_it_could_give() -> None:
    """Later reports have the load of each partition with another in-sync replica on this machine."""

    async def act(broker: Broker) -> None:
        every = {"alone": 40, "pair": 30, "foreign": 10, "followed": 10, "out_of_sync": 10}
        assert await broker.pass_time(0.75, **every) == BrokerLoad(1, 0.75)
        given = PartitionLoad("t", PAIR, 0.75 * 30 / 100, 1, (2,))
        assert await broker.pass_time(0.75, **every) == BrokerLoad(1, 0.75, (given,))
        assert await broker.pass_time(0.5, pair=1) == BrokerLoad(1, 0.5, (msgspec.structs.replace(given, load=0.5),))
        broker.gone = (2,)
        assert await broker.pass_time(0.75, **every) == BrokerLoad(1, 0.75), "the other one is away"
        broker.gone = ()
        assert await broker.pass_time(0.75) == BrokerLoad(1, 0.75), "it does something else"
        await broker.pass_time(0.25, **every)
        assert await broker.pass_time(0.75, **every) == BrokerLoad(1, 0.75), "what was before counts no more"

    simulate(act)


def test_a_move_is_written_counted_and_told() -> None:
    async def act(broker: Broker) -> None:
        broker.loads.give(MOVE)
        await wait(broker.loop, 1)
        (plan,) = broker.commits
        assert not plan.needs_controller
        assert broker.loads.moves == 1
        ((event, fields),) = broker.lines
        assert event == "this process is overloaded: another process of this machine leads a partition now"
        assert fields == {
            "partition": "t-1",
            "receiver": 2,
            "load_percent": 20,
            "our_load_percent": 90,
            "their_load_percent": 10,
        }

    simulate(act)


@pytest.mark.parametrize("partition", [FOREIGN, FOLLOWED, OUT_OF_SYNC, 7])
def test_a_move_of_what_has_changed_is_not_made(partition: int) -> None:
    """The leader's own image decides."""

    async def act(broker: Broker) -> None:
        broker.loads.give(msgspec.structs.replace(MOVE, partition=partition))
        broker.loads.give(msgspec.structs.replace(MOVE, topic="gone"))
        await wait(broker.loop, 1)
        assert (broker.commits, broker.loads.moves) == ([], 0)
        assert {event for event, _ in broker.lines} == {"partition changed, its leadership stays here"}

    simulate(act)


def test_a_move_that_conflicts_is_not_counted() -> None:
    async def act(broker: Broker) -> None:
        broker.error = ConflictError("another writer")
        broker.loads.give(MOVE)
        await wait(broker.loop, 1)
        assert broker.loads.moves == 0
        assert [event for event, _ in broker.lines] == ["partition leadership could not be moved"]

    simulate(act)

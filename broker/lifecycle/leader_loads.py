"""Reports this broker's load, and gives partitions to other brokers of the same machine.

The supervisor decides (`replication/leader_balance`); the leader makes a move if its own image allows it
(`replication/leader_moves`).

The cost of a partition is its share of the requests and bytes since the last report. Costs are computed only while the
broker is overloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lowtide.broker.turns import run_in_slices
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, SessionError
from lowtide.metadata.store import AmbiguousError, MetadataStoreError
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicPartition
from lowtide.replication.elections import steady_epochs
from lowtide.replication.leader_balance import REPORT_INTERVAL_MS, BrokerLoad, LeaderMove, PartitionLoad
from lowtide.replication.leader_moves import can_receive, plan_leader_move
from lowtide.replication.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.lifecycle.ports import Neighbours, Ports
    from lowtide.replication.partition import Partition
    from lowtide.replication.topic_traffic import Traffic

REPORTED_MAX: Final = 50
"""The number of partitions in a report: far more than can move before the next one."""

BYTES_IN_PER_REQUEST: Final = 10_000
BYTES_OUT_PER_REQUEST: Final = 50_000
"""The number of bytes that cost as much as a request. Source: measurements of small and large requests."""

_PARTITIONS_A_STEP: Final = 200
_NS_PER_MS: Final = 1_000_000
_NOT_MADE: Final = (AmbiguousError, ConflictError, FencedError, MetadataStoreError, SessionError)


def cost(traffic: Traffic) -> float:
    """Returns the cost of a partition since the broker's start, in requests."""
    requests = traffic.produce_requests + traffic.fetch_requests
    bytes_in = traffic.bytes_in + traffic.replication_bytes_in
    bytes_out = traffic.bytes_out + traffic.replication_bytes_out
    return requests + bytes_in / BYTES_IN_PER_REQUEST + bytes_out / BYTES_OUT_PER_REQUEST


class LeaderLoads:
    """Reports to the supervisor, and follows its orders. Call `on_tick` about once a second."""

    def __init__(self, context: BrokerContext, ports: Ports, neighbours: Neighbours, *, full: float) -> None:
        self.moves = 0
        self._context = context
        self._ports = ports
        self._neighbours = neighbours
        self._full = full
        self._due_ms = 0
        self._last = (ports.clock.monotonic_ms(), ports.read_usage().cpu_ns)
        self._before: dict[TopicPartition, float] = {}
        """The costs at the last report; empty while the broker is not overloaded."""
        self._runs = False

    def on_tick(self) -> None:
        now_ms = self._ports.clock.monotonic_ms()
        if now_ms < self._due_ms or self._runs:
            return
        self._due_ms = now_ms + REPORT_INTERVAL_MS
        (last_ms, last_ns), self._last = self._last, (now_ms, self._ports.read_usage().cpu_ns)
        if now_ms <= last_ms:
            return
        load = (self._last[1] - last_ns) / ((now_ms - last_ms) * _NS_PER_MS)
        if load < self._full:
            self._before = {}
            self._neighbours.report(BrokerLoad(self._context.metadata.broker_id, load))
            return
        self._runs = True
        costs: dict[TopicPartition, float] = {}
        run_in_slices(self._ports.loop, self._ports.clock, self._costs(costs), lambda: self._report(load, costs))

    def _costs(self, costs: dict[TopicPartition, float]) -> Iterator[None]:
        for count, partition in enumerate(list(self._context.replicas.partitions.values())):
            costs[partition.topic_partition] = cost(partition.traffic)
            if count % _PARTITIONS_A_STEP == 0:
                yield

    def _report(self, load: float, costs: dict[TopicPartition, float]) -> None:
        self._runs = False
        before, self._before = self._before, costs
        since = {key: each - before[key] for key, each in costs.items() if key in before}
        total = sum(since.values())
        partitions: list[PartitionLoad] = []
        if total > 0:
            steady = steady_epochs(self._context.metadata.image)
            for key in sorted(since, key=lambda key: since[key], reverse=True)[:REPORTED_MAX]:
                partition = self._context.replicas.partitions.get(key)
                receivers = () if partition is None else self._receivers(partition, steady)
                if partition is not None and receivers:
                    share = load * since[key] / total
                    partitions.append(PartitionLoad(key.topic, key.partition, share, partition.replicas[0], receivers))
        self._neighbours.report(BrokerLoad(self._context.metadata.broker_id, load, tuple(partitions)))

    def _receivers(self, partition: Partition, steady: Mapping[BrokerId, BrokerEpoch]) -> tuple[BrokerId, ...]:
        """Returns the brokers of this machine that could lead it. Internal topics stay with their coordinators."""
        if (
            not partition.is_leader
            or partition.topic_partition.topic in INTERNAL_TOPICS
            or len(partition.replicas) == 1
        ):
            return ()
        image, (topic_name, number) = self._context.metadata.image, partition.topic_partition
        topic = image.topics.get(topic_name)
        if topic is None or topic.topic_id != partition.topic_id or number >= len(topic.partitions):
            return ()
        away = self._neighbours.away()
        found = [each for each in partition.in_sync_replicas if each in self._neighbours.machine and each not in away]
        return tuple(each for each in found if can_receive(image, topic, number, each, steady))

    def give(self, move: LeaderMove) -> None:
        self._context.tasks.spawn(self._give(move), name=f"leadership of {move.topic}-{move.partition}")

    async def _give(self, move: LeaderMove) -> None:
        metadata, log = self._context.metadata, self._context.log
        name = f"{move.topic}-{move.partition}"
        topic = metadata.image.topics.get(move.topic)
        step = None
        if topic is not None and move.partition < len(topic.partitions):
            step = plan_leader_move(
                metadata.image, self._context.metadata.broker_id, topic, move.partition, move.receiver
            )
        if step is None:
            log.info("partition changed, its leadership stays here", partition=name, receiver=move.receiver)
            return
        try:
            await metadata.commit(ChangePlan((step,), needs_controller=False))
        except _NOT_MADE as error:
            log.info(
                "partition leadership could not be moved", partition=name, receiver=move.receiver, error=str(error)
            )
            return
        self.moves += 1
        log.info(
            "this process is overloaded: another process of this machine leads a partition now",
            partition=name,
            receiver=move.receiver,
            load_percent=round(100 * move.load),
            our_load_percent=round(100 * move.giver_load),
            their_load_percent=round(100 * move.receiver_load),
        )

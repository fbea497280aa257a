"""Deletes consumed records as Kafka Streams does with its repartition topics, without Java.

Every 100 ms one record is produced to each of 1,000 partitions, and then one DeleteRecords per leader deletes all of
them, as `repartition.purge.interval.ms=100` and `commit.interval.ms=100` have it. Phases without deletes alternate with
phases with them; the difference of the broker's CPU time is the cost of the purging. `bench/streams.py` measures the
same with Kafka Streams itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

from .client import Address, Client, check, decode
from .errors import BenchError
from .figures import percentile
from .frames import KEYS, TIMEOUT_MS, VERSIONS, batch, request_frame
from .loads import SMALL_RECORD_BYTES, now_ms
from .measure import Amounts, Cost, Figures, Workload, cost_of
from .targets import Target
from .topics import Topic, by_leader, check_ends, topic_on

INTERVAL_S = 0.1
PHASES = 2
"""Phases of each kind in a round."""

REPARTITION = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800"}
"""The configuration of a repartition topic. Source: Kafka's RepartitionTopicConfig."""


@dataclass
class _Purge:
    """The clients and measurements of one topic."""

    topic: Topic
    clients: dict[Address, Client]
    end: int = 0
    """The end offset of each partition, exclusive."""

    produce_us: list[float] = field(default_factory=list)
    delete_us: list[float] = field(default_factory=list)

    def produce(self, frames: dict[Address, bytes]) -> None:
        """Produces one record to each partition, by one request to each leader. Errors: BenchError."""
        key = KEYS[ProduceRequest]
        for leader, frame in frames.items():
            began = time.perf_counter_ns()
            answer = decode(key, VERSIONS[key], self.clients[leader].ask_bytes(frame))
            self.produce_us.append((time.perf_counter_ns() - began) / 1000)
            for row in answer.responses[0].partition_responses:
                check(row.error_code, f"Produce to partition {row.index}")
        self.end += 1

    def delete(self) -> None:
        """Deletes all records, by one request to each leader. Errors: BenchError."""
        for leader, partitions in by_leader(self.topic.leaders).items():
            rows = [DeleteRecordsPartition(partition_index=partition, offset=self.end) for partition in partitions]
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=self.topic.name, partitions=rows)], timeout_ms=TIMEOUT_MS
            )
            began = time.perf_counter_ns()
            answer = self.clients[leader].ask(request)
            self.delete_us.append((time.perf_counter_ns() - began) / 1000)
            for row in answer.topics[0].partitions:
                check(row.error_code, f"DeleteRecords of partition {row.partition_index}")
                if row.low_watermark != self.end:
                    raise BenchError(
                        f"partition {row.partition_index} was deleted to {row.low_watermark}, not to {self.end}"
                    )


def purges(target: Target, amounts: Amounts) -> Figures:
    """Measures the broker's CPU with and without deletes, and the latency of the deletes."""
    with topic_on(target, amounts.partitions, REPARTITION) as topic, ExitStack() as stack:
        leaders = by_leader(topic.leaders)
        purge = _Purge(topic, {leader: stack.enter_context(Client(leader)) for leader in leaders})
        record = batch(1, SMALL_RECORD_BYTES, now_ms())
        frames = {leader: _produce_frame(topic.name, partitions, record) for leader, partitions in leaders.items()}
        purge.produce(frames)
        purge.delete()
        time.sleep(amounts.settle_s)
        purge.delete_us.clear()
        costs: dict[bool, list[Cost]] = {False: [], True: []}
        rounds = dict.fromkeys(costs, 0)
        for _ in range(PHASES):
            for deletes in (False, True):
                with cost_of(target) as cost:
                    rounds[deletes] += _phase(purge, frames, amounts.purged_s / PHASES, deletes=deletes)
                costs[deletes].append(cost)
        check_ends(topic, purge.end * amounts.partitions)
    return _figures(purge, costs, rounds, amounts.partitions)


def _produce_frame(topic: str, partitions: Sequence[int], records: bytes) -> bytes:
    rows = [PartitionProduceData(index=partition, records=records) for partition in partitions]
    data = TopicProduceData(name=topic, partition_data=rows)
    return request_frame(ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data]))


def _phase(purge: _Purge, frames: dict[Address, bytes], seconds: float, *, deletes: bool) -> int:
    """Runs rounds at the interval; a late round begins at once, and none is made up for.

    Returns the number of rounds.
    """
    rounds = 0
    due_s = time.perf_counter()
    until_s = due_s + seconds
    while due_s < until_s:
        purge.produce(frames)
        if deletes:
            purge.delete()
        rounds += 1
        due_s = max(due_s + INTERVAL_S, time.perf_counter())
        time.sleep(max(due_s - time.perf_counter(), 0))
    return rounds


def _figures(purge: _Purge, costs: dict[bool, list[Cost]], rounds: dict[bool, int], partitions: int) -> Figures:
    seconds = {deletes: sum(cost.seconds for cost in each) for deletes, each in costs.items()}
    cpu_s = {deletes: sum(cost.cpu_s for cost in each) / rounds[deletes] for deletes, each in costs.items()}
    purging_s = cpu_s[True] - cpu_s[False]
    deletes_us, produces_us = sorted(purge.delete_us), sorted(purge.produce_us)
    return {
        "purging, % of a core at ten rounds a second": purging_s / INTERVAL_S * 100,
        "without deletes, % of a core": cpu_s[False] / INTERVAL_S * 100,
        "with deletes, % of a core": cpu_s[True] / INTERVAL_S * 100,
        "broker CPU us a deleted partition": purging_s / partitions * 1e6,
        "rounds/s without deletes": rounds[False] / seconds[False],
        "rounds/s with deletes": rounds[True] / seconds[True],
        "delete, p50 ms": percentile(deletes_us, 0.5) / 1000,
        "delete, p99 ms": percentile(deletes_us, 0.99) / 1000,
        "produce, p50 ms": percentile(produces_us, 0.5) / 1000,
    }


WORKLOADS = {
    "purge": Workload(
        run=purges,
        says="a record to each partition and one DeleteRecords over all of them, every 100 ms, beside no deletes",
        headline=("purging, % of a core at ten rounds a second", "rounds/s with deletes", "delete, p50 ms"),
    )
}

"""Groups and transactions: a rebalance of one member, commits of offsets, and transactions through librdkafka."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

from .client import Address, Client, check
from .errors import BenchError
from .figures import percentile
from .frames import commit_error_position, request_frame
from .measure import Amounts, Figures, Workload, cost_of, generator
from .pump import Lane, pump
from .targets import Target
from .topics import READY_LIMIT_S, topic_on

PARTITIONS = 10
"""Shortens the start of a group, so that a member commits at once."""

SESSION_MS = 30_000
_WAIT_S = 60.0
_POLL_S = 0.02
_NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
"""Errors of a coordinator that is not ready."""


def rebalances(target: Target, amounts: Amounts) -> Figures:
    """Measures a group whose only member joins repeatedly, and gets its assignment each time."""
    group = _name()
    with Client(coordinator_of(target, group)) as client:
        # The time that a new group waits for more members is a setting of the broker; the measurement starts after it.
        member_id = _rebalance(client, group, "")
        latencies = []
        with cost_of(target) as cost:
            for _ in range(amounts.rebalances):
                began = time.perf_counter_ns()
                _rebalance(client, group, member_id)
                latencies.append((time.perf_counter_ns() - began) / 1000)
    return _latencies(latencies) | {"broker CPU us a rebalance": cost.cpu_s / amounts.rebalances * 1e6}


def _rebalance(client: Client, group: str, member_id: str) -> str:
    """Joins, sends the assignment, and receives it. Returns the member's id."""
    protocols = [JoinGroupRequestProtocol(name="bench", metadata=b"topics")]
    join = JoinGroupRequest(
        group_id=group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS, member_id=member_id,
        protocol_type="bench", protocols=protocols,
    )  # fmt: skip
    joined = ask_ready(client, join, lambda answer: answer.error_code)
    rows = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"partitions")]
    synced = client.ask(
        SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=rows
        )
    )
    check(synced.error_code, "SyncGroup")
    if synced.assignment != b"partitions":
        raise BenchError(f"the assignment came back as {synced.assignment!r}")
    member: str = joined.member_id
    return member


def commits(target: Target, amounts: Amounts) -> Figures:
    """Groups commit ten offsets at a time, each on a connection of its own, the next commit after the answer."""
    groups = [_name() for _ in range(amounts.committing_groups)]
    with topic_on(target, PARTITIONS) as topic:
        addresses = [coordinator_of(target, group) for group in groups]
        for group, address in zip(groups, addresses, strict=True):
            with Client(address) as client:
                request = _commit_request(group, topic.name, 0)
                ask_ready(client, request, lambda answer: answer.topics[0].partitions[0].error_code)
        lanes = [
            Lane(address, itertools.repeat(request_frame(_commit_request(group, topic.name, 1))))
            for group, address in zip(groups, addresses, strict=True)
        ]
        with cost_of(target) as cost:
            load = pump(lanes, count=amounts.commits, error_position=commit_error_position(topic.name, PARTITIONS))
        for group, address in zip(groups, addresses, strict=True):
            _check_committed(address, group, topic.name)
    offsets = load.count * PARTITIONS
    figures = {
        "offsets/s": offsets / load.seconds,
        "broker CPU us an offset": cost.cpu_s / offsets * 1e6,
        "p50 us": load.p50_us,
        "p99 us": load.p99_us,
    }
    return figures | generator(load) | {"resident MB": target.resident_mb()}


def _commit_request(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata="")
        for number in range(PARTITIONS)
    ]
    return OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)]
    )


def _check_committed(address: Address, group: str, topic: str) -> None:
    wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=list(range(PARTITIONS)))
    with Client(address) as client:
        answer = client.ask(OffsetFetchRequest(group_id=group, topics=[wanted]))
    found = [row.committed_offset for row in answer.topics[0].partitions]
    if found != [1] * PARTITIONS:
        raise BenchError(f"{group} has committed 1 everywhere, and gets {found}")


def transactions(target: Target, amounts: Amounts) -> Figures:
    """Measures transactions of a librdkafka producer, with one record and one offset each."""
    try:
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: PLC0415 - the others run without it.
    except ImportError:
        raise BenchError("confluent-kafka is not installed") from None
    group, count = _name(), amounts.transactions
    with topic_on(target, 1) as topic:
        consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
        try:
            producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": group, "linger.ms": 0})
            member = consumer.consumer_group_metadata()

            def run(number: int) -> float:
                began = time.perf_counter_ns()
                producer.begin_transaction()
                producer.produce(topic.name, b"x" * 100)
                producer.send_offsets_to_transaction([TopicPartition(topic.name, 0, number)], member, _WAIT_S)
                producer.commit_transaction(_WAIT_S)
                return (time.perf_counter_ns() - began) / 1000

            producer.init_transactions(_WAIT_S)
            run(0)
            with cost_of(target) as cost:
                latencies = [run(number) for number in range(1, count + 1)]
            [place] = consumer.committed([TopicPartition(topic.name, 0)], _WAIT_S)
        except KafkaException as error:
            raise BenchError(f"librdkafka gave up: {error}") from None
        finally:
            consumer.close()
    if place.offset != count:
        raise BenchError(f"the last transaction committed offset {count}, and {place.offset} is returned")
    figures = {"transactions/s": count / cost.seconds, "broker CPU us a transaction": cost.cpu_s / count * 1e6}
    return figures | _latencies(latencies)


def _latencies(latencies: Sequence[float]) -> Figures:
    ordered = sorted(latencies)
    return {"p50 us": percentile(ordered, 0.5), "p99 us": percentile(ordered, 0.99)}


def _name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def coordinator_of(target: Target, group: str) -> Address:
    """Returns the address of a group's coordinator. Errors: BenchError without one for a long time."""
    with target.connect() as client:
        answer = ask_ready(client, FindCoordinatorRequest(key=group), lambda answer: answer.error_code)
    return answer.host, answer.port


def ask_ready(client: Client, request: Any, error_of: Callable[[Any], int]) -> Any:
    """Returns the answer of a ready coordinator. Errors: BenchError if none is ready for a long time."""
    limit = time.perf_counter() + READY_LIMIT_S
    while (error := error_of(answer := client.ask(request))) in _NOT_YET:
        if time.perf_counter() > limit:
            raise BenchError(f"{type(request).__name__} is answered with error {error} after {READY_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)
    check(error, type(request).__name__)
    return answer


WORKLOADS = {
    "rebalance": Workload(
        run=rebalances,
        says="JoinGroup and SyncGroup of a group's only member",
        headline=("p50 us", "broker CPU us a rebalance"),
    ),
    "commits": Workload(
        run=commits,
        says="OffsetCommit of ten offsets, twenty groups on a connection each, closed loops",
        headline=("offsets/s", "broker CPU us an offset", "p50 us"),
    ),
    "transactions": Workload(
        run=transactions,
        says="transactions of one record and one offset, one after the other, through librdkafka",
        headline=("transactions/s", "broker CPU us a transaction", "p50 us"),
    ),
}

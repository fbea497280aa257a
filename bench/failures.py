"""Workloads of several brokers: acks, deletes on all replicas, a silent follower, moved leadership, a failed leader."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition

from .client import Address, Client, check, decode
from .cluster import ClusterTarget, Member
from .errors import BenchError
from .figures import percentile
from .frames import batch, delete_error_position, delete_frame, produce_error_position, produce_frame, request_frame
from .loads import RECORD_BYTES, SMALL_RECORD_BYTES, now_ms
from .measure import Amounts, Figures, Workload, cost_of
from .pump import Lane, pump
from .targets import Target
from .topics import Topic, check_ends, fill, produce_each, topic_on

PRODUCED_A_SECOND = 50
WAITS_MS = 30_000
"""How long a delete may wait for a silent follower."""

MOVE_WAITS_MS = 12_000
LIMIT_S = 90.0
_PARK_S = 0.5
_POLL_S = 0.001
_ASK_AGAIN_S = 0.01
_ANSWER_S = 0.5
_DELETE_RECORDS_VERSION, _LEADER_ONLY_VERSION = 0, 3
_LAST_RECORDS = 500


def deletes_on_replicas(target: Target, amounts: Amounts) -> Figures:
    """Deletes of one more record each time: on an idle partition, then while records are produced."""
    figures: Figures = {}
    count = amounts.deletes
    for name, rate in (("idle", 0), (f"{PRODUCED_A_SECOND} records/s", PRODUCED_A_SECOND)):
        with topic_on(target, 1) as topic:
            fill(topic, batch(_LAST_RECORDS, RECORD_BYTES, now_ms()), 1)
            time.sleep(amounts.settle_s)
            frames = [delete_frame(topic.name, [(0, offset)]) for offset in range(1, count + 1)]
            with _producing(topic, rate), cost_of(target) as cost:
                load = pump(
                    [Lane(topic.leaders[0], frames)], count=count, error_position=delete_error_position(topic.name)
                )
        figures |= {
            f"{name}, p50 ms": load.p50_us / 1000,
            f"{name}, p99 ms": load.p99_us / 1000,
            f"{name}, brokers' CPU us": cost.cpu_s / count * 1e6,
        }
    return figures


@contextmanager
def _producing(topic: Topic, rate: int) -> Iterator[None]:
    """Produces records, one per request, at this rate per second, in another thread."""
    stop = threading.Event()
    frame = produce_frame(topic.name, 0, batch(1, SMALL_RECORD_BYTES, now_ms()))

    def produce() -> None:
        with Client(topic.leaders[0]) as client:
            while not stop.wait(1 / rate):
                client.ask_bytes(frame)

    thread = threading.Thread(target=produce) if rate else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread is not None:
            thread.join()


def acknowledged(target: Target, amounts: Amounts) -> Figures:
    """Measures one closed loop whose records the leader acknowledges, then one whose records all replicas have."""
    records = batch(1, SMALL_RECORD_BYTES, now_ms())
    figures: Figures = {}
    with topic_on(target, 1) as topic:
        for name, acks in (("acks=1", 1), ("acks=all", -1)):
            lane = Lane(topic.leaders[0], itertools.repeat(produce_frame(topic.name, 0, records, acks=acks)))
            with cost_of(target) as cost:
                load = pump([lane], count=amounts.closed, error_position=produce_error_position(topic.name))
                time.sleep(amounts.settle_s)  # Followers may fetch after the answers. Their CPU counts.
            figures |= {
                f"{name}, p50 us": load.p50_us,
                f"{name}, p99 us": load.p99_us,
                f"{name}, brokers' CPU us": cost.cpu_s / load.count * 1e6,
            }
        check_ends(topic, 2 * amounts.closed)
    return figures


def silent_follower(target: Target, _amounts: Amounts) -> Figures:
    """Stops a follower (SIGSTOP), and measures the answer to a delete with a timeout of half a minute."""
    assert isinstance(target, ClusterTarget)
    target.ensure_up()
    with topic_on(target, 1, replicas=_ids(target)) as topic, _filled(topic):
        leader = target.member(topic.leaders[0])
        follower = _followers(target, leader)[-1]
        target.freeze_member(follower)
        began = time.perf_counter()
        try:
            waiting = _Waiting(leader.address, topic.name, WAITS_MS)
            given_up = (
                _until(lambda: follower.broker_id not in _row(leader.address, topic.name).isr_nodes, waiting) - began
            )
            answered, error = waiting.answer()
        finally:
            target.thaw_member(follower)
        _until_in_sync(target, topic)
    return {
        "answered with error": float(error),
        "answered after, s": answered - began,
        "follower out of the ISR after, s": given_up,
        "answered after that, s": answered - began - given_up,
    }


def moved_leadership(target: Target, _amounts: Amounts) -> Figures:
    """Moves the leadership while a delete waits."""
    assert isinstance(target, ClusterTarget)
    target.ensure_up()
    ids = _ids(target)
    with topic_on(target, 1, replicas=ids) as topic, _filled(topic):
        leader = target.member(topic.leaders[0])
        heir, silent = _followers(target, leader)
        order = [heir.broker_id, leader.broker_id, silent.broker_id]
        with Client(leader.address) as client:
            row = ReassignableTopic(
                name=topic.name, partitions=[ReassignablePartition(partition_index=0, replicas=order)]
            )
            check(
                client.ask(AlterPartitionReassignmentsRequest(topics=[row]), 0).error_code,
                "AlterPartitionReassignments",
            )
            _until(lambda: _row(leader.address, topic.name).replica_nodes[0] == heir.broker_id)
            target.freeze_member(silent)
            try:
                waiting = _Waiting(leader.address, topic.name, MOVE_WAITS_MS)
                time.sleep(_PARK_S)
                began = time.perf_counter()
                wanted = ElectLeadersTopicPartitions(topic=topic.name, partitions=[0])
                check(client.ask(ElectLeadersRequest(topic_partitions=[wanted]), 1).error_code, "ElectLeaders")
                moved = _until(lambda: _row(heir.address, topic.name).leader_id == heir.broker_id)
                answered, error = waiting.answer()
            finally:
                target.thaw_member(silent)
        _until_in_sync(target, topic)
    return {
        "answered with error": float(error),
        "answered after the election was asked for, ms": (answered - began) * 1000,
        "new leader known after, ms": (moved - began) * 1000,
    }


def leader_only(target: Target, amounts: Amounts) -> Figures:
    """Measures one KIP-1343 request over many partitions of one leader."""
    with topic_on(target, amounts.partitions, replicas=_ids(target)) as topic:
        produce_each(topic, batch(4, SMALL_RECORD_BYTES, now_ms()))
        check_ends(topic, 4 * amounts.partitions)
        time.sleep(amounts.settle_s)
        seconds = []
        with Client(topic.leaders[0]) as client:
            for offset in (1, 2, 3):
                rows = [
                    DeleteRecordsPartition(partition_index=number, offset=offset)
                    for number in range(amounts.partitions)
                ]
                topics = [DeleteRecordsTopic(name=topic.name, partitions=rows)]
                frame = request_frame(
                    DeleteRecordsRequest(topics=topics, timeout_ms=WAITS_MS, leader_only=True), _LEADER_ONLY_VERSION
                )
                began = time.perf_counter()
                data = client.ask_bytes(frame)
                seconds.append(time.perf_counter() - began)
                for row in decode(ApiKey.DELETE_RECORDS, _LEADER_ONLY_VERSION, data).topics[0].partitions:
                    check(row.error_code, f"DeleteRecords of partition {row.partition_index}")
    return {
        "partitions": float(amounts.partitions),
        "first request, ms": seconds[0] * 1000,
        "best of three, ms": min(seconds) * 1000,
    }


def failover(target: Target, amounts: Amounts) -> Figures:
    """Kills the leader, and measures the time until another one acknowledges a record with acks=all."""
    assert isinstance(target, ClusterTarget)
    target.ensure_up()
    seconds = []
    with topic_on(target, 1, replicas=_ids(target)) as topic:
        frame, error_position = (
            produce_frame(topic.name, 0, batch(1, SMALL_RECORD_BYTES, now_ms())),
            produce_error_position(topic.name),
        )
        _until_in_sync(target, topic)
        for _ in range(amounts.failovers):
            leader = next(
                member
                for member in target.members
                if member.broker_id == _row(target.members[0].address, topic.name).leader_id
            )
            target.kill_member(leader)
            began = time.perf_counter()
            asked = next(member for member in target.members if member is not leader)
            _until(lambda asked=asked: _is_acknowledged(target, asked, topic.name, frame, error_position))  # type: ignore[misc]
            seconds.append(time.perf_counter() - began)
            target.start_member(leader)
            target.ensure_up()
            _until_in_sync(target, topic)
    seconds.sort()
    return {
        "writable again, p50 s": percentile(seconds, 0.5),
        "writable again, p99 s": percentile(seconds, 0.99),
        "writable again, longest s": seconds[-1],
        "leaders killed": float(len(seconds)),
    }


class _Waiting:
    """A pending delete of one partition, and the time of its answer."""

    def __init__(self, leader: Address, topic: str, timeout_ms: int) -> None:
        rows = [DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])]
        self._frame = request_frame(DeleteRecordsRequest(topics=rows, timeout_ms=timeout_ms), _DELETE_RECORDS_VERSION)
        self._leader = leader
        self._outcome: tuple[float, int] | OSError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def answer(self) -> tuple[float, int]:
        """The time of the answer, and its error. Errors: BenchError."""
        self._thread.join(LIMIT_S)
        if not isinstance(self._outcome, tuple):
            raise BenchError(f"a delete that waited got no answer: {self._outcome}")
        return self._outcome

    @property
    def is_over(self) -> bool:
        """Whether the answer has arrived."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with Client(self._leader) as client:
                data = client.ask_bytes(self._frame)
            row = decode(ApiKey.DELETE_RECORDS, _DELETE_RECORDS_VERSION, data).topics[0].partitions[0]
            self._outcome = time.perf_counter(), row.error_code
        except OSError as error:
            self._outcome = error


@contextmanager
def _filled(topic: Topic) -> Iterator[None]:
    fill(topic, batch(10, SMALL_RECORD_BYTES, now_ms()), 1)
    yield


def _ids(target: Target) -> tuple[int, ...]:
    return tuple(range(1, min(target.brokers, 3) + 1))


def _followers(target: ClusterTarget, leader: Member) -> list[Member]:
    """Returns all followers, a known controller first: the silent one is taken from the end."""
    with Client(leader.address) as client:
        controller_id = client.ask(MetadataRequest(topics=[])).controller_id
    return sorted(
        (member for member in target.members if member is not leader),
        key=lambda member: member.broker_id != controller_id,
    )


def _row(address: Address, topic: str) -> MetadataResponsePartition:
    """Returns the topic's first partition according to a broker. Errors: OSError."""
    with Client(address, limit_s=_ANSWER_S) as client:
        answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False))
    rows: list[MetadataResponsePartition] = answer.topics[0].partitions
    if not rows:
        raise ConnectionError(f"nothing is known of {topic} yet")
    return rows[0]


def _until(condition: Callable[[], bool], waiting: _Waiting | None = None) -> float:
    """Returns when a condition became true, before the waiting delete was answered.

    Errors: BenchError.
    """
    limit = time.perf_counter() + LIMIT_S
    while True:
        with suppress(OSError):
            if condition():
                return time.perf_counter()
        if waiting is not None and waiting.is_over:
            return time.perf_counter()
        if time.perf_counter() > limit:
            raise BenchError(f"the expected event did not happen within {LIMIT_S:.0f} s")
        time.sleep(_POLL_S)


def _until_in_sync(target: ClusterTarget, topic: Topic) -> None:
    for member in target.members:
        _until(lambda member=member: len(_row(member.address, topic.name).isr_nodes) == len(_ids(target)))  # type: ignore[misc]


def _is_acknowledged(target: ClusterTarget, asked: Member, topic: str, frame: bytes, error_position: int) -> bool:
    """Returns whether the leader acknowledges a record. Errors: OSError."""
    row = _row(asked.address, topic)
    for member in target.members:
        if member.broker_id == row.leader_id and member.process is not None and member.process.poll() is None:
            with Client(member.address, limit_s=_ANSWER_S) as client:
                data = client.ask_bytes(frame)
            return data[error_position - 4 : error_position - 2] == ErrorCode.NONE.to_bytes(2, "big")
    time.sleep(_ASK_AGAIN_S)
    return False


WORKLOADS = {
    "acks": Workload(
        run=acknowledged,
        says="one record of 100 B a request on one connection, the next one after the answer: acks=1, then acks=all",
        headline=("acks=1, p50 us", "acks=1, p99 us", "acks=all, p50 us", "acks=all, p99 us"),
        several=True,
    ),
    "replicated": Workload(
        run=deletes_on_replicas,
        says="DeleteRecords of one more record each time, which every replica must have",
        headline=(
            "idle, p50 ms",
            "idle, p99 ms",
            f"{PRODUCED_A_SECOND} records/s, p50 ms",
            f"{PRODUCED_A_SECOND} records/s, p99 ms",
        ),
        several=True,
    ),
    "leaderonly": Workload(
        run=leader_only,
        says="one DeleteRecords with LeaderOnly over many partitions of one leader",
        headline=("first request, ms", "best of three, ms"),
        warms=False,
        several=True,
    ),
    "frozen": Workload(
        run=silent_follower,
        says=f"DeleteRecords on an idle partition with a follower stopped by SIGSTOP, {WAITS_MS // 1000} s allowed",
        headline=("answered with error", "answered after, s", "answered after that, s"),
        warms=False,
        starts=True,
        several=True,
    ),
    "moved": Workload(
        run=moved_leadership,
        says=f"another leader is elected while a DeleteRecords waits, {MOVE_WAITS_MS // 1000} s allowed",
        headline=("answered with error", "answered after the election was asked for, ms"),
        warms=False,
        starts=True,
        several=True,
    ),
    "failover": Workload(
        run=failover,
        says="SIGKILL of the leader until another one acknowledges a record with acks=all",
        headline=("writable again, p50 s", "writable again, p99 s"),
        warms=False,
        starts=True,
        several=True,
    ),
}

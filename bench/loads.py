"""Workloads under load: produce and consume in batches, single records, closed loops, Metadata."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterator

from .client import Address, Client, check
from .errors import BenchError
from .frames import (
    SESSION_VERSION,
    SessionFrame,
    batch,
    fetch_frame,
    metadata_frame,
    produce_error_position,
    produce_frame,
    session_frame,
    session_request,
    versions_frame,
)
from .measure import Amounts, Figures, Workload, cost_of, generator
from .pump import FetchLane, Lane, Load, drain, pump
from .targets import Target
from .topics import Topic, check_ends, topic_on

PARTITIONS = 3
DEPTH = 5
"""Requests in flight on each connection, as in Java's producer: `max.in.flight.requests.per.connection`."""

RECORDS_PER_BATCH = 16
RECORD_BYTES = 1024
SMALL_RECORD_BYTES = 100
END = 1
"""The end offset of a topic with one record."""

_EPOCH = struct.Struct(">i")


def now_ms() -> int:
    """Returns the timestamp of records."""
    return int(time.time() * 1000)


def _produce(topic: Topic, records: bytes, count: int) -> Load:
    """Sends a batch `count` times, over one connection to each partition's leader."""
    lanes = [
        Lane(leader, itertools.repeat(produce_frame(topic.name, number, records)))
        for number, leader in enumerate(topic.leaders)
    ]
    return pump(lanes, count=count, depth=DEPTH, error_position=produce_error_position(topic.name))


def batches(target: Target, amounts: Amounts) -> Figures:
    """Produces batches, then reads them."""
    records = batch(RECORDS_PER_BATCH, RECORD_BYTES, now_ms())
    total = amounts.batches * RECORDS_PER_BATCH
    with topic_on(target, PARTITIONS) as topic:
        with cost_of(target) as cost:
            load = _produce(topic, records, amounts.batches)
        ends = check_ends(topic, total)
        figures = {
            "produce, records/s": total / load.seconds,
            "produce, MB/s": total * RECORD_BYTES / load.seconds / 1e6,
            "produce, broker CPU s per million records": cost.cpu_s / total * 1e6,
            "produce, p50 us": load.p50_us,
            "produce, p99 us": load.p99_us,
        }
        figures |= {f"produce, {name}": value for name, value in generator(load).items()}
        lanes = [
            FetchLane(leader, fetch_frame(topic.name, number), end=ends[number])
            for number, leader in enumerate(topic.leaders)
        ]
        with cost_of(target) as cost:
            read = drain(lanes)
        assert read.records == total
        figures |= {
            "consume, MB/s": read.received_bytes / read.seconds / 1e6,
            "consume, broker CPU s per GB": cost.cpu_s / read.received_bytes * 1e9,
            "consume, p50 us": read.p50_us,
            "consume, p99 us": read.p99_us,
        }
        figures |= {f"consume, {name}": value for name, value in generator(read).items()}
    return figures | {"resident MB": target.resident_mb()}


def singles(target: Target, amounts: Amounts) -> Figures:
    """Measures Produce requests of one record, pipelined."""
    records = batch(1, RECORD_BYTES, now_ms())
    with topic_on(target, PARTITIONS) as topic:
        with cost_of(target) as cost:
            load = _produce(topic, records, amounts.singles)
        check_ends(topic, amounts.singles)
    return _requests(load, cost.cpu_s) | generator(load) | {"resident MB": target.resident_mb()}


def _requests(load: Load, cpu_s: float) -> Figures:
    """Returns the figures of equal requests."""
    return {
        "requests/s": load.count / load.seconds,
        "broker CPU us a request": cpu_s / load.count * 1e6,
        "p50 us": load.p50_us,
        "p99 us": load.p99_us,
    }


def closed(target: Target, amounts: Amounts) -> Figures:
    """Measures closed loops on one connection, then on many: the next request follows the answer."""
    records = batch(1, SMALL_RECORD_BYTES, now_ms())
    figures: Figures = {}
    with topic_on(target, 1) as topic:
        frame, error_position = produce_frame(topic.name, 0, records), produce_error_position(topic.name)
        produced = 0
        for connections, count in ((1, amounts.closed), (amounts.closed_connections, 5 * amounts.closed)):
            lanes = [Lane(topic.leaders[0], itertools.repeat(frame)) for _ in range(connections)]
            with cost_of(target) as cost:
                load = pump(lanes, count=count, error_position=error_position)
            produced += count
            found = _requests(load, cost.cpu_s) | generator(load)
            figures |= {f"{_connections(connections)}, {name}": value for name, value in found.items()}
        check_ends(topic, produced)
    return figures | {"resident MB": target.resident_mb()}


def fetches(target: Target, amounts: Amounts) -> Figures:
    """Fetches the only record of a topic on many connections: without sessions, in sessions, and in idle sessions."""
    figures: Figures = {}
    with topic_on(target, 1) as topic:
        records = batch(1, SMALL_RECORD_BYTES, now_ms())
        _produce(topic, records, 1)
        check_ends(topic, 1)
        plain = fetch_frame(topic.name, 0)
        count, leader = amounts.closed_connections, topic.leaders[0]
        kinds = {
            "no session": ([Lane(leader, itertools.repeat(plain.request)) for _ in range(count)], plain.error_position),
            "session": (
                [_session_lane(leader, topic.name, 0) for _ in range(count)],
                session_frame(topic.name, 0, 0).error_position,
            ),
            "idle session": (
                [_session_lane(leader, topic.name, None) for _ in range(count)],
                session_frame(topic.name, 0, None).error_position,
            ),
        }
        for kind, (lanes, error_position) in kinds.items():
            with cost_of(target) as cost:
                load = pump(lanes, count=amounts.metadata, error_position=error_position)
            if kind != "idle session" and load.received_bytes < load.count * len(records):
                raise BenchError(f"fetches gave {load.received_bytes} bytes, which can't be {load.count} records")
            figures |= {
                f"{kind}, {name}": value for name, value in (_requests(load, cost.cpu_s) | generator(load)).items()
            }
    return figures


def _session_lane(address: Address, topic: str, offset: int | None) -> Lane:
    """Opens a connection with a fetch session; later requests name an offset, or nothing at the end."""
    with Client(address) as client:  # A session outlives the connection that began it.
        answer = client.ask(session_request(topic, 0, 0, END if offset is None else offset), SESSION_VERSION)
    check(answer.error_code or answer.responses[0].partitions[0].error_code, "a fetch")
    return Lane(address, _session_frames(session_frame(topic, answer.session_id, offset)))


def _session_frames(made: SessionFrame) -> Iterator[bytes]:
    request = bytearray(made.request)
    for epoch in itertools.count(1):
        _EPOCH.pack_into(request, made.epoch_position, epoch)
        yield bytes(request)


def _connections(count: int) -> str:
    return "one connection" if count == 1 else f"{count} connections"


def metadata(target: Target, amounts: Amounts) -> Figures:
    """Measures Metadata of one topic in closed loops on many connections."""
    with topic_on(target, 1) as topic:
        return _asked(target, amounts, metadata_frame(topic.name))


def versions(target: Target, amounts: Amounts) -> Figures:
    """Measures ApiVersions in closed loops on many connections."""
    return _asked(target, amounts, versions_frame())


def _asked(target: Target, amounts: Amounts, frame: bytes) -> Figures:
    lanes = [Lane(target.address, itertools.repeat(frame)) for _ in range(amounts.closed_connections)]
    with cost_of(target) as cost:
        load = pump(lanes, count=amounts.metadata)
    return _requests(load, cost.cpu_s) | generator(load)


def _workload(run: Callable[[Target, Amounts], Figures], says: str, *headline: str) -> Workload:
    return Workload(run=run, says=says, headline=headline)


WORKLOADS = {
    "batches": _workload(
        batches,
        "16 records of 1 KiB a batch, one batch a request; 3 partitions, a connection each, 5 requests in flight; "
        "then read back",
        "produce, records/s",
        "produce, broker CPU s per million records",
        "consume, MB/s",
        "consume, broker CPU s per GB",
    ),
    "single": _workload(
        singles,
        "one record of 1 KiB a request; 3 connections, 5 requests in flight",
        "requests/s",
        "broker CPU us a request",
    ),
    "closed": _workload(
        closed,
        "one record of 100 B a request, the next one after the answer",
        "one connection, p50 us",
        "50 connections, requests/s",
        "50 connections, broker CPU us a request",
    ),
    "fetches": _workload(
        fetches,
        "Fetch of one record of 100 B without a session, then in one, then of nothing in a session; closed loops",
        "no session, broker CPU us a request",
        "session, broker CPU us a request",
        "idle session, broker CPU us a request",
    ),
    "metadata": _workload(metadata, "Metadata of one topic, closed loops", "broker CPU us a request"),
    "versions": _workload(versions, "ApiVersions on as many connections, closed loops", "broker CPU us a request"),
}

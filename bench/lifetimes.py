"""Workloads of a broker's lifetime: start, many partitions, restart, SIGKILL, idle connections."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.runtime.process import raise_open_file_limit

from .client import Client
from .errors import BenchError
from .frames import batch, produce_frame, request_frame
from .loads import PARTITIONS, SMALL_RECORD_BYTES, now_ms
from .measure import Amounts, Figures, Workload, cost_of, idle_percent
from .targets import Target
from .topics import (
    READY_LIMIT_S,
    Topic,
    can_fetch,
    check_ends,
    create_topic,
    end_offsets,
    fill,
    topic_on,
    wait_until_serving,
)

FILL_RECORDS = 500
FILL_RECORD_BYTES = 1024
_POLL_S = 0.005
_SPARE_DESCRIPTORS = 100


def start(target: Target, amounts: Amounts) -> Figures:
    """Measures the time from exec to the first answer on an empty directory, idle usage, a stop, and a restart.

    An earlier start compiles what the broker imports, as an installation does.
    """
    target.start_fresh()
    first = target.start_fresh()
    cpu_s = target.cpu_s()
    time.sleep(2 * amounts.settle_s)
    resident = target.resident_mb()
    idle = idle_percent(target, amounts.idle_s)
    stopped = target.stop()
    return {
        "first answer, s": first,
        "CPU s until then": cpu_s,
        "resident idle, MB": resident,
        "idle CPU, %": idle,
        "stop, s": stopped,
        "start again, s": target.start(),
    }


def partitions(target: Target, amounts: Amounts) -> Figures:
    """Creates a topic of many partitions, and restarts with it."""
    if target.can_be_started:
        target.start_fresh()
    time.sleep(amounts.settle_s)
    resident = target.resident_mb()
    with topic_on(target, amounts.partitions) as topic:
        figures = {"created, s": topic.create_s, "all serve, s": topic.serve_s}
        time.sleep(amounts.settle_s)
        figures["resident, MB more"] = target.resident_mb() - resident
        figures["idle CPU, %"] = idle_percent(target, amounts.idle_s)
        if target.brokers > 1:
            figures["idle CPU of a broker, %"] = figures["idle CPU, %"] / target.brokers
            figures["resident of a broker, MB"] = target.resident_mb() / target.brokers
        if target.can_be_started:
            figures["stop, s"] = target.stop()
            began = time.perf_counter()
            figures["restart, first answer, s"] = target.start()
            wait_until_serving(target, topic.name, amounts.partitions)
            figures["restart, all serve, s"] = time.perf_counter() - began
    return figures


def kill(target: Target, amounts: Amounts) -> Figures:
    """Kills a broker with this many bytes in its logs; measures the time until all partitions can be fetched."""
    target.start_fresh()
    records = batch(FILL_RECORDS, FILL_RECORD_BYTES, now_ms())
    count = max(amounts.bytes_before_kill // (PARTITIONS * len(records)), 1)
    topic = create_topic(target, "bench-kill", PARTITIONS, {})
    fill(topic, records, count)
    ends = check_ends(topic, count * PARTITIONS * FILL_RECORDS)
    resident = target.resident_mb()
    target.stop(signal.SIGKILL)
    began = time.perf_counter()
    answers = target.start()
    found = _wait_until_fetched(target, topic)
    figures = {
        "first answer, s": answers,
        "first fetch works, s": time.perf_counter() - began,
        "recovery CPU s": target.cpu_s(),
        "records lost": float(sum(ends) - sum(found)),
        "resident before, MB": resident,
        "resident after, MB": target.resident_mb(),
    }
    target.close()
    return figures


def _wait_until_fetched(target: Target, topic: Topic) -> list[int]:
    """Waits until every partition returns its end and its first record.

    Returns the ends. Errors: BenchError after a long time.
    """
    limit = time.perf_counter() + READY_LIMIT_S
    while time.perf_counter() < limit:
        with suppress(OSError):
            leaders = wait_until_serving(target, topic.name, len(topic.leaders))
            ends = end_offsets(topic.name, leaders)
            if ends is not None and all(
                not end or can_fetch(leaders[number], topic.name, number, 0) for number, end in enumerate(ends)
            ):
                return ends
        time.sleep(_POLL_S)
    raise BenchError(f"after SIGKILL not every partition could be fetched within {READY_LIMIT_S:.0f} s")


def connections(target: Target, amounts: Amounts) -> Figures:
    """Measures many connections: their cost when idle, and the cost of the next request."""
    wanted = amounts.connections
    if raise_open_file_limit() < wanted + _SPARE_DESCRIPTORS:
        raise BenchError(f"this process may not open {wanted} connections: raise the limit of open files")
    if target.can_be_started:
        target.start_fresh()
    with topic_on(target, 1) as topic:
        frame = produce_frame(topic.name, 0, batch(1, SMALL_RECORD_BYTES, now_ms()))
        with Client(topic.leaders[0]) as client:
            client.ask_bytes(frame)
        time.sleep(amounts.settle_s)
        before = target.resident_mb()
        hello = request_frame(ApiVersionsRequest(), 0)
        clients: list[Client] = []
        try:
            with cost_of(target) as opening:
                clients += (Client(topic.leaders[0]) for _ in range(wanted))
                for client in clients:
                    client.ask_bytes(hello)
            time.sleep(amounts.settle_s)
            figures = {
                "connections": float(wanted),
                "KB a connection": (target.resident_mb() - before) * 1000 / wanted,
                "idle CPU, %": idle_percent(target, amounts.idle_s),
                "open, broker CPU us": opening.cpu_s / wanted * 1e6,
            }
            with cost_of(target) as producing:
                for client in clients:
                    client.ask_bytes(frame)
            figures |= {
                "one record each, broker CPU us": producing.cpu_s / wanted * 1e6,
                "KB a connection after it": (target.resident_mb() - before) * 1000 / wanted,
            }
            check_ends(topic, wanted + 1)
        finally:
            for client in clients:
                client.socket.close()
    return figures


WORKLOADS = {
    "start": Workload(
        run=start,
        says="an empty directory",
        headline=("first answer, s", "resident idle, MB", "idle CPU, %"),
        warms=False,
        starts=True,
    ),
    "partitions": Workload(
        run=partitions,
        says="one topic of many partitions",
        headline=("all serve, s", "restart, all serve, s"),
        warms=False,
    ),
    "kill": Workload(
        run=kill,
        says="SIGKILL, and start again",
        headline=("first fetch works, s", "records lost"),
        warms=False,
        starts=True,
    ),
    "connections": Workload(
        run=connections,
        says="connections that have asked for ApiVersions and wait, then produce one record each",
        headline=("KB a connection", "idle CPU, %"),
        warms=False,
    ),
}

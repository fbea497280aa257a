"""A well-behaved client that measures the time of each response.

It is a separate process, so that it measures only the broker.
    python tests/chaos/honest_client.py PORT TOPIC

Produces one record every few milliseconds to partition 0 of a topic that exists. For each line on standard input it
prints, as a line of JSON, its results since the previous line, and ends at the end of the input.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time

from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.settings import Address, ClientSettings
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.clock import SystemClock
from lowtide.simulation.load import PRODUCE_VERSION

PAUSE_S = 0.003
ANSWER_LIMIT_MS = 120_000


def produce_request(topic: str) -> ProduceRequest:
    """One record of a hundred bytes."""
    rows = [PartitionProduceData(index=0, records=build_batch([(0, None, bytes(100), ())]))]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])


def summary(times_s: list[float], errors: list[str]) -> dict[str, object]:
    """Milliseconds."""
    ordered = sorted(times_s) or [0.0]
    at = {
        name: ordered[min(int(len(ordered) * share), len(ordered) - 1)]
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
    return {"count": len(times_s), "errors": errors[:5], **{name: round(value * 1000, 2) for name, value in at.items()}}


def main(port: int, topic: str) -> None:
    """Produces until standard input ends, and prints a summary for each line of it."""
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def listen() -> None:
        for _ in sys.stdin:
            asked.put(True)
        asked.put(False)

    threading.Thread(target=listen, daemon=True).start()
    address, clock = Address("127.0.0.1", port), SystemClock()
    settings = ClientSettings(
        bootstrap_servers=(address,), client_id="honest", connection_setup_timeout_ms=ANSWER_LIMIT_MS
    )
    connection = BlockingConnection.open(address, settings, clock.monotonic_ms() + ANSWER_LIMIT_MS)
    request = produce_request(topic)
    times_s: list[float] = []
    errors: list[str] = []
    while True:
        began = time.perf_counter()
        answer = connection.request(request, clock.monotonic_ms() + ANSWER_LIMIT_MS, newest=PRODUCE_VERSION)
        times_s.append(time.perf_counter() - began)
        error = answer.responses[0].partition_responses[0].error_code
        if error != ErrorCode.NONE:
            errors.append(ErrorCode(error).name)
        try:
            if not asked.get(timeout=PAUSE_S):
                return
        except queue.Empty:
            continue
        sys.stdout.write(json.dumps(summary(times_s, errors)) + "\n")
        sys.stdout.flush()
        times_s, errors = [], []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

"""A client that does nothing wrong and notes how long each answer takes. A process of its own: what it measures is the broker alone.

    python tests/chaos/honest_client.py PORT TOPIC

Produces one record every few milliseconds to partition 0 of a topic that exists. For each line on standard input it tells, as a line of
JSON, what it has seen since the line before, and ends when there is no more input.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import sys
import threading
import time

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.records import build_batch
from lowtide.simulation.load import PRODUCE_VERSION

PAUSE_S = 0.003
ANSWER_LIMIT_S = 120.0


def produce_frame(topic: str) -> bytes:
    """One record of a hundred bytes."""
    rows = [PartitionProduceData(index=0, records=build_batch([(0, None, bytes(100), ())]))]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])
    body = request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "honest") + codec_for(ProduceRequest, PRODUCE_VERSION).encode(request)
    return struct.pack(">i", len(body)) + body


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Errors: ConnectionError, TimeoutError."""
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionError(f"the broker closed an honest connection after {len(received)} of {count} bytes")
        received += piece
    return received


def error_of(answer: bytes) -> int:
    """What the broker says of the one partition."""
    _, position = read_response_header(answer, 0, len(answer), flexible=True)
    response = codec_for(ProduceResponse, PRODUCE_VERSION).decode(answer, position, len(answer))
    error: int = response.responses[0].partition_responses[0].error_code
    return error


def summary(times_s: list[float], errors: list[str]) -> dict[str, object]:
    """Milliseconds."""
    ordered = sorted(times_s) or [0.0]
    at = {name: ordered[min(int(len(ordered) * share), len(ordered) - 1)] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    return {"count": len(times_s), "errors": errors[:5], **{name: round(value * 1000, 2) for name, value in at.items()}}


def main(port: int, topic: str) -> None:
    """See the module."""
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def listen() -> None:
        for _ in sys.stdin:
            asked.put(True)
        asked.put(False)

    threading.Thread(target=listen, daemon=True).start()
    connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = produce_frame(topic)
    times_s: list[float] = []
    errors: list[str] = []
    while True:
        began = time.perf_counter()
        connection.sendall(frame)
        answer = read_exactly(connection, *struct.unpack(">i", read_exactly(connection, 4)))
        times_s.append(time.perf_counter() - began)
        error = error_of(answer)
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

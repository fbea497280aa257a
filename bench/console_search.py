"""Measures a search in a broker's own console, and what another client of the broker notices.

    python -m bench.console_search --mib 1024

A topic is filled, then the console searches it by text, by header and by a filter, with hits in the middle of the log.
Meanwhile another process sends small requests. It prints the time to the first hits, the whole
time, and the delays of the small requests with and without a search.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .figures import percentile

TOPIC = "searched"
PARTITIONS = 4
RECORD_BYTES = 512
REST_S = 0.002
WARM_S = 3.0
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, 0)
SEARCHES: dict[str, dict[str, Any]] = {
    "newest 50": {},
    "text, 1 hit in the middle": {"text": '"id": {middle},'},
    "header, a hit every 1,000": {"header": "source=EWR"},
    "filter, a hit every 500": {"where": "delay == `7`"},
    "filter, no hit": {"where": "delay == `-1`"},
}


def main() -> None:
    """Fills a topic and runs all searches."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--mib", type=int, default=1024, help="the size of the topic")
    given.add_argument("--codec", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    given.add_argument("--probe", metavar="ADDRESS", help="only send small requests, and print their times")
    arguments = given.parse_args()
    if arguments.probe:
        probe(arguments.probe)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, broker(folder) as (bootstrap, url):
        count = fill(bootstrap, arguments.mib, arguments.codec)
        print("no search:", delays_of(bootstrap, lambda: time.sleep(WARM_S)), flush=True)
        for name, conditions in SEARCHES.items():
            before = held_of(url)
            found: dict[str, Any] = {}
            wanted = {key: each.replace("{middle}", str(count // 2)) for key, each in conditions.items()}
            delays = delays_of(bootstrap, lambda: found.update(search(url, wanted)))  # noqa: B023 - called here
            held = {limit: count for limit, count in held_of(url).items() if count}
            more = {
                limit: count - before.get(limit, 0) for limit, count in held.items() if count > before.get(limit, 0)
            }
            print(f"{name}: {found}; {delays}; delays by the broker's own code, up to s: {more}", flush=True)


@contextmanager
def broker(folder: str) -> Iterator[tuple[str, str]]:
    """Runs a broker; gives its address and that of its HTTP listener."""
    ports = [free_port() for _ in range(2)]
    keys = {
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]}",
        "log.dirs": folder,
        "http.listeners": f"http://127.0.0.1:{ports[1]}",
        "http.trust.local": "true",
    }
    command = [sys.executable, "-m", "lowtide.cli.main", "serve"]
    command += [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def fill(bootstrap: str, mib: int, codec: str) -> int:
    """Writes records with JSON values. Returns the number of records."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": codec})
    count = mib * 1024 * 1024 // RECORD_BYTES
    for number in range(count):
        value = json.dumps(
            {"id": number, "carrier": ("UA", "AA", "DL")[number % 3], "delay": number % 500, "pad": "x" * 430}
        )
        headers: list[tuple[str, str | bytes | None]] = [("source", b"EWR" if number % 1000 == 0 else b"LGA")]
        while True:
            try:
                producer.produce(TOPIC, value.encode(), f"k{number}".encode(), number % PARTITIONS, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return count


def search(url: str, conditions: dict[str, Any]) -> dict[str, Any]:
    """Runs one search to its end."""
    began, hits = time.perf_counter(), 0
    first: float | None = None
    end: dict[str, Any] = {}
    for line in lines(url, {"topic": TOPIC, "count": 50, "seconds": 60, "bytes": 4 << 30, **conditions}):
        if "hits" in line:
            first = first or time.perf_counter() - began
            hits += len(line["hits"])
        end = line.get("end", end)
    return {
        "first hit": None if first is None else f"{first:.2f} s",
        "whole": f"{time.perf_counter() - began:.2f} s",
        "hits": hits,
        "searched": f"{end['bytes'] >> 20} MiB",
        "why": end["why"],
    }


def held_of(url: str) -> dict[str, int]:
    """Returns how many delays of the event loop the broker's own code caused, by their upper limits in seconds."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:  # noqa: S310 - our own broker
        rows = [line.decode().split() for line in response if line.startswith(b"lowtide_loop_held_seconds_bucket")]
    found, below = {}, 0
    for name, count in rows:
        found[name.partition('le="')[2].partition('"')[0]] = int(float(count)) - below
        below = int(float(count))
    return found


def lines(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the lines of a search."""
    request = urllib.request.Request(  # noqa: S310 - our own broker
        f"{url}/console/api/search",
        json.dumps(body).encode(),
        {"X-Lowtide-Console": "1", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        for line in response:
            yield json.loads(line)


def delays_of(bootstrap: str, work: Callable[[], object]) -> str:
    """Returns the delays of small requests while `work` runs."""
    command = [sys.executable, "-m", "bench.console_search", "--probe", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        work()
        answer, _ = process.communicate("stop\n")
    delays = sorted(json.loads(answer))
    p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
    return f"small requests: {len(delays)}, p50 {p50:.1f}, p99 {p99:.1f}, worst {delays[-1]:.1f} ms"


def probe(bootstrap: str) -> None:
    """Sends small requests, one every few milliseconds, until its input ends; prints their times."""
    host, _, port = bootstrap.rpartition(":")
    delays = []
    with socket.create_connection((host, int(port))) as connection:
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], REST_S)[0]:
            began = time.perf_counter()
            connection.sendall(API_VERSIONS)
            (size,) = struct.unpack(">i", read(connection, 4))
            read(connection, size)
            delays.append((time.perf_counter() - began) * 1000)
    print(json.dumps(delays))


def read(connection: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes."""
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError("the broker closed the connection")
        found += part
    return found


if __name__ == "__main__":
    main()

"""No request blocks the loop, or uses memory, for long: for any API and version, built from the declarations of the
messages.

Blocks are measured as CPU time of the loop's thread, so a busy machine does not lengthen them. The requests have nearly
as many rows as are accepted (`lowtide.request.rows.max`), where their topics have a row each.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lowtide.protocol.api_keys import API, FIRST_OF_OURS, ApiKey, request_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.primitives import unsigned_varint
from lowtide.testing.cluster import LowtideCluster
from tests.inside import loop_of

from .large_frames import LargeFrames, framed

ROWS = 4_900
ROWS_OF_ALL_VERSIONS = 2_000
HOLD_S_MAX = 0.060
"""Three times the documented limit: the collector of cycles visits more objects in a test's process."""
ATTEMPTS = 4
"""On a shared core the same work sometimes takes more CPU time, and other brokers' memory may grow."""

MEMORY_FACTOR, MEMORY_BYTES = 8, 64 << 20
AT_ONCE = 12
REFUSAL_BYTES_MAX = 256 << 10
PARTITIONS = 300
KEYS = sorted(key for key in API if LargeFrames(2, deep=True, names=["n"]).frame(key, API[key].max_version) is not None)


class Holds:
    """The longest time for which one callback kept the loop's thread busy."""

    def __init__(self) -> None:
        self.thread = 0
        self.longest_s = 0.0
        self.callback = ""

    def clear(self) -> None:
        self.longest_s = 0.0

    def run(self, original: Any, handle: Any) -> None:
        if threading.get_ident() != self.thread:
            original(handle)
            return
        began_s = time.thread_time()
        original(handle)
        held_s = time.thread_time() - began_s
        if held_s > self.longest_s:
            self.longest_s, self.callback = held_s, repr(handle)


class WatchedBroker:
    """A broker whose blocks and memory are measured."""

    def __init__(self, cluster: LowtideCluster, holds: Holds) -> None:
        self.address = (cluster.host, cluster.port)
        self.holds = holds

    def ask(self, frame: bytes) -> int | None:
        """Returns the size of the answer; None if the connection was closed instead."""
        try:
            with socket.create_connection(self.address, timeout=60) as client:
                client.sendall(frame)
                size = self._read(client, 4)
                left = total = struct.unpack(">i", size)[0] if size else 0
                while left:
                    taken = len(self._read(client, min(left, 1 << 20)))
                    if not taken:
                        return None
                    left -= taken
                return total or None
        except ConnectionError:
            return None

    @staticmethod
    def _read(client: socket.socket, count: int) -> bytes:
        received = b""
        while len(received) < count:
            piece = client.recv(count - len(received))
            if not piece:
                return b""
            received += piece
        return received

    def check(self, frames: list[bytes], what: str) -> list[int | None]:
        """Sends them at once; fails if the loop is blocked, or memory grows, beyond the limits."""
        allowed = MEMORY_FACTOR * sum(map(len, frames)) + MEMORY_BYTES
        for attempt in range(ATTEMPTS):
            self.holds.clear()
            with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
                peak.write("5")
            before = resident("VmRSS")
            with ThreadPoolExecutor(len(frames)) as senders:
                answers = list(senders.map(self.ask, frames))
            grown = resident("VmHWM") - before
            if (self.holds.longest_s < HOLD_S_MAX and grown < allowed) or attempt == ATTEMPTS - 1:
                break
        assert self.holds.longest_s < HOLD_S_MAX, (
            f"{what}: {self.holds.longest_s * 1000:.0f} ms in {self.holds.callback}"
        )
        assert grown < allowed, f"{what}: {grown >> 20} MiB"
        return answers


def resident(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


@pytest.fixture(scope="module")
def broker() -> Iterator[WatchedBroker]:
    """One broker on asyncio's own loop, whose callbacks can be measured; the collector skips test modules."""
    holds = Holds()
    patch = pytest.MonkeyPatch()
    patch.setattr("uvloop.new_event_loop", asyncio.new_event_loop)
    original = asyncio.Handle._run
    patch.setattr(asyncio.Handle, "_run", lambda handle: holds.run(original, handle))
    try:
        config = {
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1",
        }
        with LowtideCluster(config=config, in_process=True) as cluster:
            watched = WatchedBroker(cluster, holds)
            topic = CreatableTopic(
                name="wide", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
            assert watched.ask(framed(ApiKey.CREATE_TOPICS, 5, codec_for(CreateTopicsRequest, 5).encode(request)))
            watched.ask(framed(ApiKey.FIND_COORDINATOR, 1, b"\0\x01g\0"))
            holds.thread = asyncio.run_coroutine_threadsafe(thread_id(), loop_of(cluster)).result(120)
            gc.collect()
            gc.freeze()
            yield watched
    finally:
        gc.unfreeze()
        patch.undo()


async def thread_id() -> int:
    return threading.get_ident()


def frames_of(key: ApiKey, version: int, rows: int) -> Iterator[bytes]:
    """Many unknown names; then many rows of the existing topic, or of one name."""
    for deep, names in ((False, [f"n{number}" for number in range(rows)]), (True, ["wide"])):
        if deep and key == ApiKey.DELETE_TOPICS:
            continue  # The other requests need it.
        frame = LargeFrames(rows, deep=deep, names=names).frame(key, version)
        if frame is not None:
            yield frame


OLDER = [key for key in KEYS if API[key].min_version < API[key].max_version]


@pytest.mark.parametrize(
    ("key", "is_newest"),
    [
        *(pytest.param(key, True, id=key.name) for key in KEYS),
        *(pytest.param(key, False, id=f"{key.name}, older", marks=pytest.mark.slow) for key in OLDER),
    ],
)
def test_large_requests_of_every_version(broker: WatchedBroker, key: ApiKey, is_newest: bool) -> None:
    """Each has an answer, or its connection is closed; the next request is served."""
    for version in [API[key].max_version] if is_newest else range(API[key].min_version, API[key].max_version):
        for frame in frames_of(key, version, ROWS_OF_ALL_VERSIONS):
            broker.check([frame], f"{key.name} v{version}")
    assert broker.ask(framed(ApiKey.API_VERSIONS, 0, b"")) is not None


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
@pytest.mark.slowest
def test_very_large_requests_and_malformed_ones(broker: WatchedBroker, key: ApiKey) -> None:
    version = API[key].max_version
    for frame in frames_of(key, version, ROWS):
        broker.check([frame], f"{key.name} v{version}, {len(frame)} bytes")
        shorter = frame[4:-1]
        [answer] = broker.check([len(shorter).to_bytes(4, "big") + shorter], f"{key.name} v{version}, a byte too few")
        assert answer is None or answer < REFUSAL_BYTES_MAX


@pytest.mark.parametrize(
    "key",
    [ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.FETCH, ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.DELETE_RECORDS],
    ids=lambda key: key.name,
)
@pytest.mark.slowest
def test_several_at_once_take_turns(broker: WatchedBroker, key: ApiKey) -> None:
    frame = list(frames_of(key, API[key].max_version, ROWS))[-1]
    answers = broker.check([frame] * AT_ONCE, f"{AT_ONCE} of {key.name}")
    assert None not in answers


@pytest.mark.parametrize("key", [key for key in KEYS if key < FIRST_OF_OURS], ids=lambda key: key.name)
def test_more_rows_than_allowed_are_refused(broker: WatchedBroker, key: ApiKey) -> None:
    """The count is refused before a row is read: the rows are arbitrary bytes."""
    version = API[key].max_version
    one = LargeFrames(1, deep=True, names=["x"]).frame(key, version)
    assert one is not None
    broker.check([one[:-8] + bytes(1 << 22)], f"{key.name} v{version} with zeros")


@pytest.mark.slow
def test_tagged_fields_by_the_million_close_the_connection(broker: WatchedBroker) -> None:
    """Covers the header and the body."""
    key, version, count = ApiKey.METADATA, 12, 1_000_000
    assert request_header_is_flexible(key, version)
    tags = unsigned_varint(count) + b"\x05\0" * count
    plain = framed(key, version, b"")
    header = plain[4:-1] + tags
    assert broker.check([len(header).to_bytes(4, "big") + header], "tags in the header") == [None]
    assert broker.check([framed(key, version, b"\0\0\0" + tags)], "tags in the body") == [None]

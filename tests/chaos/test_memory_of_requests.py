"""The largest accepted requests take at most eight times their frame in memory, for each API that has rows.

A few megabytes for all requests together are not counted. The peak of Python's allocations is measured, which does not
depend on the machine.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.describe_groups import DescribeGroupsResponse
from lowtide.testing.cluster import LowtideCluster

from .large_frames import LargeFrames, framed

FACTOR = 8
BUFFERS_BYTES = 6 << 20
"""Memory that doesn't grow with the frame: at most ten thousand rows, and their answer. It is counted once for all
requests."""

FRAME_BYTES = 300_000
WHOLE_FRAME_BYTES = 45_000
ROWS_MAX = 4_900
"""Entries that may each be in a separate row."""
AT_ONCE = 6
MANY_AT_ONCE, MANY_FRAME_BYTES = 50, 20_000
MANY_AT_ONCE_KEYS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.DELETE_RECORDS,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
)
"""One API takes up to a minute; ALL_APIS=1 has the others. The last answer is 13 times as large as its request."""
WRITTEN_FRAME_BYTES = 4_000
"""The rows of ALTER_CLIENT_QUOTAS, which are all written to the metadata: a hundred thousand would take minutes."""
TIMES = 3
HEADER_BYTES = 5
KEYS = sorted(key for key in API if LargeFrames(2, deep=True, names=["n"]).frame(key, API[key].max_version) is not None)
TASTE = ApiKey.PRODUCE
"""The API that `make test` measures: its answer is several times as large as its request."""


def largest(key: ApiKey, version: int, *, deep: bool, size: int = FRAME_BYTES) -> tuple[bytes, int]:
    """Returns a frame of about `size` bytes with short rows that name different things, and how many they are."""
    names = [f"{number:x}" for number in range(ROWS_MAX)]
    sample = LargeFrames(2_000, deep=deep, names=names).frame(key, version)
    assert sample is not None
    rows = min(ROWS_MAX, 2_000 * size // len(sample))
    frame = LargeFrames(rows, deep=deep, names=names).frame(key, version)
    assert frame is not None
    return frame, rows


def ask(address: tuple[str, int], frame: bytes, answer: bytearray) -> int:
    """Sends a frame; the answer's bytes behind its size go into `answer` as far as it has room.

    Returns how many there were.
    """
    with socket.create_connection(address, timeout=900) as client:
        client.sendall(frame)
        head = client.recv(4, socket.MSG_WAITALL)
        size = left = struct.unpack(">i", head)[0] if head else 0
        while left:
            room = memoryview(answer)[min(size - left, len(answer) - 65_536) :]
            left -= client.recv_into(room, min(left, len(room))) or left
        return size


class MeasuredBroker:
    """A broker in the process that this is used in, which has no other one."""

    cluster: ClassVar[LowtideCluster]
    address: ClassVar[tuple[str, int]]

    @classmethod
    def start(cls) -> tuple[str, int]:
        """Returns its address."""
        config = {
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1",
        }
        cls.cluster = LowtideCluster(config=config, in_process=True)
        cls.cluster.start()
        cls.address = (cls.cluster.host, cls.cluster.port)
        room = bytearray(1 << 17)
        while ask(cls.address, framed(ApiKey.FIND_COORDINATOR, 1, b"\0\x01g\0"), room) and room[8:10] != b"\0\0":
            time.sleep(0.05)
        return cls.address

    @classmethod
    def stop(cls) -> None:
        cls.cluster.stop()

    @classmethod
    def peak(cls, frames: list[bytes]) -> int:
        """Returns the memory that requests take at once at their peak."""
        answers = [bytearray(1 << 17) for _ in frames]
        ask(cls.address, frames[0], answers[0])  # Codecs are compiled, buffers are there.
        with ThreadPoolExecutor(len(frames)) as senders:
            tracemalloc.start(1)
            try:
                list(senders.map(lambda pair: ask(cls.address, *pair), zip(frames, answers, strict=True)))
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()


class Broker(NamedTuple):
    process: ProcessPoolExecutor
    address: tuple[str, int]

    def peak_of(self, frames: list[bytes]) -> int:
        """Returns the memory that requests take at once at their peak, in bytes."""
        return self.process.submit(MeasuredBroker.peak, frames).result()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, get_context("spawn")) as process:
        patch.syspath_prepend(Path(__file__).parents[2])  # The new process imports this module.
        yield Broker(process, process.submit(MeasuredBroker.start).result())
        process.submit(MeasuredBroker.stop).result()


def check_one(broker: Broker, key: ApiKey, size: int, version: int, *, deep: bool) -> None:
    frame, _ = largest(key, version, deep=deep, size=size)
    allowed = FACTOR * len(frame) + BUFFERS_BYTES
    # What the broker does beside it, such as a line of its log about a busy machine, is not in each of several.
    for _ in range(TIMES):
        peak = broker.peak_of([frame])
        if peak < allowed:
            break
    assert peak < allowed, f"v{version}: {peak} bytes for a frame of {len(frame)}"


def forms(key: ApiKey) -> list[tuple[int, bool]]:
    """Versions, and whether the rows are at the lowest level that the request has.

    The newest and deepest comes first.
    """
    versions = sorted({API[key].min_version, API[key].max_version}, reverse=True)
    every = [(version, deep) for version in versions for deep in (True, False)]
    return [form for form in every if LargeFrames(2, deep=form[1], names=["n"]).frame(key, form[0]) is not None]


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key == TASTE else pytest.mark.slowest, id=key.name) for key in KEYS]
)
def test_one_request(broker: Broker, key: ApiKey) -> None:
    version, deep = forms(key)[0]
    check_one(broker, key, WHOLE_FRAME_BYTES if key == TASTE else FRAME_BYTES, version, deep=deep)


@pytest.mark.slowest
@pytest.mark.parametrize("size", [WHOLE_FRAME_BYTES, FRAME_BYTES])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_one_request_in_each_form(broker: Broker, key: ApiKey, size: int) -> None:
    for version, deep in forms(key):
        check_one(broker, key, size, version, deep=deep)


@pytest.mark.slowest
@pytest.mark.parametrize("key", KEYS if os.environ.get("ALL_APIS") else MANY_AT_ONCE_KEYS, ids=lambda key: key.name)
def test_fifty_at_once(broker: Broker, key: ApiKey) -> None:
    """The fixed part is counted once for all fifty requests."""
    version = API[key].max_version
    for deep in (False, True):
        if LargeFrames(2, deep=deep, names=["n"]).frame(key, version) is None:
            continue
        frame, _ = largest(
            key, version, deep=deep, size=WRITTEN_FRAME_BYTES if key == ApiKey.ALTER_CLIENT_QUOTAS else MANY_FRAME_BYTES
        )
        allowed = MANY_AT_ONCE * FACTOR * len(frame) + BUFFERS_BYTES
        peak = broker.peak_of([frame] * MANY_AT_ONCE)
        assert peak < allowed, f"{peak} bytes for {MANY_AT_ONCE} frames of {len(frame)}"


@pytest.mark.slowest
def test_several_at_once(broker: Broker) -> None:
    """Their answers are ten times as large as they are."""
    frame, _ = largest(ApiKey.DESCRIBE_GROUPS, 6, deep=True)
    peak = broker.peak_of([frame] * AT_ONCE)
    assert peak < AT_ONCE * FACTOR * len(frame) + BUFFERS_BYTES, f"{peak} bytes for {AT_ONCE} frames of {len(frame)}"


def test_an_answer_in_parts_is_whole(broker: Broker) -> None:
    frame, _ = largest(ApiKey.DESCRIBE_GROUPS, 6, deep=True)
    answer = bytearray(8 << 20)
    size = ask(broker.address, frame, answer)
    response = codec_for(DescribeGroupsResponse, 6).decode(bytes(answer[HEADER_BYTES:size]), 0, size - HEADER_BYTES)
    names = [group.group_id for group in response.groups]
    assert names == [f"{number:x}" for number in range(len(names))]
    assert len(names) > 4_000

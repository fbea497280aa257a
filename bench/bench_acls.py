"""Measures the CPU that a thousand ACLs add to a one-record Produce: `make microbench`.

A broker of this tree is started without an authorizer and with one, in turn and several times, and sent the same
requests one after the other over one connection. Its CPU time is read from the kernel. Compared are the smallest
figures of each.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.simulation.client import WireClient
from tests.free_ports import free_ports

ROUNDS = 5
REQUESTS = 20_000
RULES = 1_000
HOST = "127.0.0.1"
VERSION = 9
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
RECORDS = (
    bytes.fromhex("00000000000000000000009effffffff02eebc0e690000000000000000018bcfe568000000018bcfe56800")
    + bytes.fromhex("ffffffffffffffffffffffffffff00000001d60100000001c801")
    + bytes(101)
)
"""A batch of one record whose value has 100 bytes, as it is on the wire."""

_LENGTH = struct.Struct(">i")


class Broker:
    """A broker process over a directory."""

    def __init__(self, directory: str, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        (self.port,) = free_ports(1)

    async def __aenter__(self) -> Self:
        given = {"listeners": f"PLAINTEXT://{HOST}:{self.port}", "log.dirs": self._directory, **self._settings}
        words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lowtide.cli.main", "serve", *words, stderr=asyncio.subprocess.DEVNULL
        )
        while True:
            try:
                (await WireClient.connect(HOST, self.port)).close()
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await self._process.wait()

    @property
    def cpu_s(self) -> float:
        """Returns its CPU time so far."""
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9

    async def produce_us(self) -> float:
        """Returns the CPU microseconds of one Produce of one record."""
        frame = produce_frame()
        reader, writer = await asyncio.open_connection(HOST, self.port)
        began = 0.0
        for number in range(REQUESTS + 2_000):
            if number == 2_000:
                began = self.cpu_s
            writer.write(frame)
            (size,) = _LENGTH.unpack(await reader.readexactly(4))
            answer = await reader.readexactly(size)
            assert b"\x00\x00" in answer[16:20], answer
        used = self.cpu_s - began
        writer.close()
        return used / REQUESTS * 1e6


def produce_frame() -> bytes:
    """Returns a request with one record for topic `bench`."""
    data = TopicProduceData(name="bench", partition_data=[PartitionProduceData(index=0, records=RECORDS)])
    body = codec_for(ProduceRequest, VERSION).encode(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]))
    whole = struct.pack(">hhih5sb", 0, VERSION, 7, 5, b"bench", 0) + body
    return _LENGTH.pack(len(whole)) + whole


async def prepare(directory: str) -> None:
    """Creates a topic, and ACLs: some for the user, and many for others."""
    async with Broker(directory, {**AUTHORIZER, "super.users": "User:ANONYMOUS"}) as broker:
        client = await WireClient.connect(HOST, broker.port)
        topic = CreatableTopic(name="bench", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False), 7)
        others = [
            rule(f"topic-{number}", f"User:user-{number % 50}", 3 + number % 2, pattern=3 + number % 2)
            for number in range(RULES - 1)
        ]
        rules = [rule("bench", "User:ANONYMOUS", 4), *others]
        answer = await client.request(CreateAclsRequest(creations=rules), 3)
        assert not any(row.error_code for row in answer.results)
        client.close()


def rule(name: str, principal: str, operation: int, *, pattern: int = 3) -> AclCreation:
    """Returns an ACL that allows access to a topic."""
    return AclCreation(
        resource_type=2,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=3,
    )


async def main() -> None:
    """Prints both figures, and their difference."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as directory:
        await prepare(directory)
        for _ in range(ROUNDS):
            for name, settings in (("without", {}), ("with", AUTHORIZER)):
                async with Broker(directory, {**settings, "log.retention.ms": "-1"}) as broker:
                    found[name].append(await broker.produce_us())
    without, limited = min(found["without"]), min(found["with"])
    print(f"{'Produce of one record, no authorizer, us of CPU':<58}{without:>9.2f}")
    print(f"{f'the same, {RULES} rules':<58}{limited:>9.2f}")
    print(f"{'more, %':<58}{(limited / without - 1) * 100:>9.2f}")


if __name__ == "__main__":
    asyncio.run(main())

"""A hundred connections send damaged frames while an honest client works: nothing fails, no client is blocked, memory
is freed.

The frames are those of real clients and of every API and version that is served, with damaged bytes; sometimes with a
wrong length, in bursts, or cut by the end of the connection. `FRAMES=1000000` is the long run (`make storm`), `SEED=n`
selects other damage; the honest client's measurements are printed at the end; a limit would depend on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lowtide.protocol.api_keys import ApiKey
from lowtide.simulation.load import PartitionLoad
from tests.campaign.struck import strike

from .fuzz_topics import FUZZ_TOPICS, HONEST_TOPIC, golden_requests, make_fuzz_topics, remove_topics, topic_ids
from .probing import ANSWER_LIMIT_S, STUCK_S, Prober
from .random_requests import RandomRequests, are_bearable, mutated, seeds_of
from .serving import ServeProcess

FRAMES = int(os.environ.get("FRAMES", "10000"))
SEED = os.environ.get("SEED", "7")
CONNECTIONS = 100
CLEANING_EACH = 5_000
"""After this many frames the topics that damaged frames created are deleted, and the named ones re-created."""

CALM_S = 1.0
"""How long the honest client works alone before the storm."""

MEMORY_LIMIT_BYTES = 64 << 20
WRONG_LENGTH, BURST, CUT = 0.02, 0.05, 0.02
"""The shares of frames with a wrong length, sent together with others, and sent as the last of a connection."""

HONEST_CLIENT = Path(__file__).parent / "honest_client.py"
_LENGTH = struct.Struct(">i")


class HonestClient:
    """The process that measures response times."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def seen(self) -> dict[str, Any]:
        """Returns its measurements since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(4 * ANSWER_LIMIT_S):
            line = await self._process.stdout.readline()
        assert line, "the honest client has failed; its output is above"
        found: dict[str, Any] = json.loads(line)
        assert not found["errors"], found
        assert found["count"] > 0, "the honest client was not served at all"
        return found


@contextlib.asynccontextmanager
async def honest_client(broker: ServeProcess) -> AsyncIterator[HonestClient]:
    """Runs the honest client."""
    client = await broker.connect()
    await PartitionLoad(HONEST_TOPIC, 0, broker.connect, random.Random(SEED)).create_topic(client, {})
    client.close()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HONEST_CLIENT),
        str(broker.port),
        HONEST_TOPIC,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield HonestClient(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(ANSWER_LIMIT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Storm:
    """Connections that send damaged frames."""

    def __init__(self, broker: ServeProcess, seeds: list[bytes]) -> None:
        self._broker = broker
        self._seeds = seeds
        self._left = FRAMES
        self._since_cleaning = 0
        self._cleaning = asyncio.Lock()
        self.counts: Counter[str] = Counter()

    async def blow(self, number: int) -> None:
        """One connection's part, until all frames were sent."""
        rng = random.Random(f"{SEED} {number}")
        prober = Prober(self._broker)
        while self._left > 0:
            stream, frames, is_cut = self._next(rng)
            self._left -= frames
            self._since_cleaning += frames
            self.counts["frames"] += frames
            strike("damaged frame", frames)
            self.counts[await self._send(prober, stream, is_cut=is_cut)] += 1
            if self._since_cleaning >= CLEANING_EACH:
                self._since_cleaning = 0
                await self._clean()
        prober.drop()

    def _next(self, rng: random.Random) -> tuple[bytes, int, bool]:
        """Bytes to send, how many frames they are, and whether the connection ends with them."""
        count = rng.choice((2, 3, 5)) if rng.random() < BURST else 1
        stream = self._stream(rng, count)
        while not are_bearable(stream + Prober.probe(0)):
            stream = self._stream(rng, count)
        if rng.random() < CUT:
            return stream[: rng.randrange(len(stream))], count, True
        return stream, count, False

    def _stream(self, rng: random.Random, count: int) -> bytes:
        stream = bytearray()
        for _ in range(count):
            frame = mutated(rng.choice(self._seeds), rng)
            size = len(frame)
            if rng.random() < WRONG_LENGTH:
                size = rng.choice((size - 1, size + 1, size + 70_000, 0, -1, 1 << 20, 104_857_600, 2**31 - 1))
            stream += _LENGTH.pack(size) + frame
        return bytes(stream)

    async def _send(self, prober: Prober, stream: bytes, *, is_cut: bool) -> str:
        """Returns the outcome: answered, closed, stuck (a fetch that waits, say), or cut by the test."""
        if is_cut:
            with contextlib.suppress(ConnectionError):
                _, writer = await prober.open()
                writer.write(stream)
                await asyncio.sleep(0)
            prober.drop()
            return "cut"
        return await prober.send_and_probe(stream, limit_s=STUCK_S)

    async def _clean(self) -> None:
        if not self._cleaning.locked():
            async with self._cleaning:
                await remove_topics(self._broker, besides=(HONEST_TOPIC, *FUZZ_TOPICS))
                await make_fuzz_topics(self._broker)


async def test_a_storm_of_damaged_frames_harms_no_client(tmp_path: Path) -> None:
    """The process survives, reports no error, always serves the honest client, and frees its memory."""
    async with ServeProcess(tmp_path / "log", "connections.max.idle.ms=1000000") as broker:
        await make_fuzz_topics(broker)
        seeds = seeds_of(RandomRequests(SEED, await topic_ids(broker)), golden_requests())
        async with honest_client(broker) as honest:
            await asyncio.sleep(CALM_S)
            calm = await honest.seen()
            before = broker.resident_bytes()
            storm = Storm(broker, seeds)
            await asyncio.gather(*map(storm.blow, range(CONNECTIONS)))
            stormy = await honest.seen()
        await remove_topics(broker)
        after = broker.resident_bytes()
        print(f"\np99 {calm['p99']} ms, in the storm {stormy['p99']} ms")
        print(f"{dict(storm.counts)}\ncalm {calm}\nstorm {stormy}\nresident MiB {before >> 20} {after >> 20}")
        for line in [line for line in broker.lines if "event loop" in line["event"]]:
            print(line)
        # Some of each: a busy machine takes longer than `STUCK_S` for half of them, which then count as stuck.
        assert min(storm.counts[outcome] for outcome in ("answered", "closed")) > FRAMES // 100
        assert after - before < MEMORY_LIMIT_BYTES
        assert await broker.terminate() == 0, broker.lines[-5:] + broker.noise
        assert not broker.faults, "\n".join(sorted({fault[-1500:] for fault in broker.faults}))


def test_no_damaged_frame_sets_a_quota() -> None:
    """A quota for all clients may be a byte in a day: a client that it slows down is not harmed."""
    (frame,) = [each for each in golden_requests() if int.from_bytes(each[:2], "big") == ApiKey.ALTER_CLIENT_QUOTAS]
    size, probe = len(frame).to_bytes(4, "big"), Prober.probe(1)
    assert not are_bearable(size + frame + probe)
    assert are_bearable(size + frame[:-3]), "one that can't be read is sent"
    assert frame.endswith(b"\0")
    assert not are_bearable(size + frame[:-1] + probe), "the next frame's first byte is its last"
    assert not are_bearable(bytes(4) + size + frame + probe), "it is not the first"

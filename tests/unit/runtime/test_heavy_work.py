"""Heavy work in a separate process, and its simulated form."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import HeavyWorker, SimulatedHeavyWorker, WorkFailedError, WorkStep
from lowtide.runtime.processes import ProcessHeavyWorker
from lowtide.runtime.simulated_loop import SimulatedLoop

DEADLINE_S = 60
LOWEST_PRIORITY = 19


class Listening:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ended: asyncio.Future[WorkFailedError | None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: bytes) -> None:
        self.messages.append(message)

    def on_end(self, error: WorkFailedError | None) -> None:
        self.ended.set_result(error)

    async def wait(self) -> WorkFailedError | None:
        async with asyncio.timeout(DEADLINE_S):
            return await self.ended


# Work for the other process, which imports it from here.
WORK = """
import os, time
from lowtide.runtime.heavy_work import WorkStep
def count(filesystem, argument):
    for number in range(int(argument)):
        yield WorkStep(10, b"%d" % number)
def where(filesystem, argument):
    yield WorkStep(0, b"%d %d" % (os.getpid(), os.nice(0)))
def for_ever(filesystem, argument):
    path = argument.decode()
    try:
        yield WorkStep(0, b"%d" % os.getpid())
        while True:
            time.sleep(0.01)
            yield WorkStep(0)
    finally:
        filesystem.write_bytes(path, b"tidy")
def busy(filesystem, argument):
    yield WorkStep(0, b"%d" % os.getpid())
    while True:
        pass
def fails(filesystem, argument):
    yield WorkStep(0, b"so far")
    raise RuntimeError("as expected")
def dies(filesystem, argument):
    os._exit(3)
    yield
def prints(filesystem, argument):
    print("noise")
    yield WorkStep(0, b"signal")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A module that both processes can import."""
    (tmp_path / "heavy_work_of_a_test.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield importlib.import_module("heavy_work_of_a_test")
    sys.modules.pop("heavy_work_of_a_test", None)


@pytest.fixture
async def worker() -> object:
    made = ProcessHeavyWorker(asyncio.get_running_loop())
    yield made
    made.close()


async def done(worker: HeavyWorker, work: object, argument: bytes = b"") -> tuple[list[bytes], WorkFailedError | None]:
    listening = Listening()
    worker.begin(work, argument, listening)
    error = await listening.wait()
    return listening.messages, error


async def test_messages_arrive_in_order(worker: ProcessHeavyWorker, work: object) -> None:
    assert not worker.process_ids, "there is none without work"
    assert await done(worker, work.count, b"1000") == ([b"%d" % number for number in range(1000)], None)  # type: ignore[attr-defined]
    assert len(worker.process_ids) == 1


async def test_one_process_does_it_all_at_a_lower_priority(worker: ProcessHeavyWorker, work: object) -> None:
    first, _ = await done(worker, work.where)  # type: ignore[attr-defined]
    second, _ = await done(worker, work.where)  # type: ignore[attr-defined]
    assert first == second
    process_id, niceness = map(int, first[0].split())
    assert process_id != os.getpid()
    assert os.nice(0) < niceness or os.nice(0) == niceness == LOWEST_PRIORITY


async def test_its_output_is_no_message(worker: ProcessHeavyWorker, work: object) -> None:
    assert await done(worker, work.prints) == ([b"signal"], None)  # type: ignore[attr-defined]


async def test_work_that_raises_is_reported_and_the_next_is_done(worker: ProcessHeavyWorker, work: object) -> None:
    messages, error = await done(worker, work.fails)  # type: ignore[attr-defined]
    assert messages == [b"so far"]
    assert "as expected" in str(error)
    assert (await done(worker, work.count, b"1"))[1] is None  # type: ignore[attr-defined]


async def test_a_process_that_dies_is_reported_and_another_begun(worker: ProcessHeavyWorker, work: object) -> None:
    _, error = await done(worker, work.dies)  # type: ignore[attr-defined]
    assert isinstance(error, WorkFailedError)
    assert (await done(worker, work.count, b"1")) == ([b"0"], None)  # type: ignore[attr-defined]


async def test_cancelled_work_tidies_up(worker: ProcessHeavyWorker, work: object, tmp_path: Path) -> None:
    listening, after = Listening(), Listening()
    running = worker.begin(work.for_ever, str(tmp_path / "tidy").encode(), listening)  # type: ignore[attr-defined]
    worker.begin(work.count, b"2", after)  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE_S):
        while not listening.messages:
            await asyncio.sleep(0.01)
    running.cancel()
    running.cancel()
    assert await listening.wait() is None
    assert (tmp_path / "tidy").read_bytes() == b"tidy"
    assert await after.wait() is None
    assert after.messages == [b"0", b"1"], "the next work is not cancelled"


async def test_work_that_waits_can_be_cancelled(worker: ProcessHeavyWorker, work: object, tmp_path: Path) -> None:
    first, second = Listening(), Listening()
    running = worker.begin(work.for_ever, str(tmp_path / "tidy").encode(), first)  # type: ignore[attr-defined]
    worker.begin(work.count, b"1", second).cancel()  # type: ignore[attr-defined]
    running.cancel()
    assert (await first.wait(), await second.wait()) == (None, None)
    assert second.messages == []


async def test_a_rate_is_kept(worker: ProcessHeavyWorker, work: object) -> None:
    listening = Listening()
    began = time.monotonic()
    worker.begin(work.count, b"50", listening, bytes_per_second=1000)  # type: ignore[attr-defined]
    await listening.wait()
    assert time.monotonic() - began >= 0.45, "500 bytes take half a second"


async def test_an_idle_process_ends_and_the_next_work_begins_another(work: object) -> None:
    worker = ProcessHeavyWorker(asyncio.get_running_loop(), idle_s=0.05)
    first, _ = await done(worker, work.where)  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE_S):
        while worker.process_ids:
            await asyncio.sleep(0.01)
    second, _ = await done(worker, work.where)  # type: ignore[attr-defined]
    assert first != second
    worker.close()


async def test_closing_kills_what_runs(work: object) -> None:
    worker = ProcessHeavyWorker(asyncio.get_running_loop())
    listening = Listening()
    worker.begin(work.busy, b"", listening)  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE_S):
        while not listening.messages:
            await asyncio.sleep(0.01)
    worker.close()
    worker.close()
    assert not is_alive(int(listening.messages[0]))
    assert not listening.ended.done()


def is_alive(process_id: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


OWNER = """
import asyncio, sys
import heavy_work_of_a_test
from lowtide.runtime.processes import ProcessHeavyWorker
class Listening:
    def on_message(self, message): print(message.decode(), flush=True)
    def on_end(self, error): pass
async def main():
    ProcessHeavyWorker(asyncio.get_running_loop()).begin(heavy_work_of_a_test.busy, b"", Listening())
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_no_process_survives_its_broker(work: object) -> None:
    """Not even a busy one after a SIGKILL of the broker."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    process_id = int(owner.stdout.readline())
    assert is_alive(process_id)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return
    ending = select.poll()
    ending.register(descriptor, select.POLLIN)
    assert ending.poll(DEADLINE_S * 1000), "it is still there"
    os.close(descriptor)


def steps(filesystem: FileSystem, argument: bytes) -> Iterator[WorkStep]:
    try:
        for number in range(3):
            yield WorkStep(100, b"%d" % number)
    finally:
        filesystem.write_bytes("/tidy", argument)


def raising(_filesystem: FileSystem, _argument: bytes) -> Iterator[WorkStep]:
    yield WorkStep(0, b"so far")
    message = "as expected"
    raise RuntimeError(message)


def test_simulated_work_that_a_kill_interrupts_never_cleans_up() -> None:
    """Protects the simulator's determinism: work that is collected late would remove files of a later life."""
    filesystem = MemoryFileSystem()
    workers = []
    for closes in (False, True):
        loop = SimulatedLoop(1)

        async def interrupt(loop: SimulatedLoop = loop, closes: bool = closes) -> None:
            worker = SimulatedHeavyWorker(filesystem, loop, Random(1))
            workers.append(worker)
            worker.begin(steps, b"x", listening := Listening())
            while not listening.messages:
                await asyncio.sleep(0.01)
            if closes:
                worker.close()

        loop.run_until_complete(interrupt())
        loop.close()
    gc.collect()
    assert not filesystem.exists("/tidy")


def test_the_simulated_form_behaves_the_same_on_virtual_time() -> None:
    loop, filesystem = SimulatedLoop(1), MemoryFileSystem()

    async def run() -> None:
        worker = SimulatedHeavyWorker(filesystem, loop, Random(1))
        assert await done(worker, steps, b"x") == ([b"0", b"1", b"2"], None)
        messages, error = await done(worker, raising)
        assert (messages, "as expected" in str(error)) == ([b"so far"], True)
        began = loop.time()
        listening, cancelled, after = Listening(), Listening(), Listening()
        worker.begin(steps, b"y", listening, bytes_per_second=10)
        worker.begin(steps, b"z", cancelled).cancel()
        worker.begin(steps, b"after", after)
        assert await listening.wait() is None
        assert loop.time() - began >= 30
        assert await cancelled.wait() is None
        assert cancelled.messages == []
        assert await after.wait() is None
        worker.close()

    loop.run_until_complete(run())
    loop.close()
    assert filesystem.read_bytes("/tidy") == b"after"

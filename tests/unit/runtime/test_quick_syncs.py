"""The committer's second thread.

The order of answers across both, failures, and the thread of the compiled module itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol import native
from lowtide.runtime.committer import Barrier, ThreadCommitter
from lowtide.runtime.filesystem import OsFile, OsFileSystem, is_passing

needs_compiled = pytest.mark.skipif(
    native.compiled is None or not hasattr(os, "eventfd"),
    reason="the compiled form wasn't built, or has no such thread here",
)
SYNCS_MAX = 64


class HeldSyncs:
    """The functions of the compiled module, of which a test carries out the rounds."""

    def __init__(self, room: int = SYNCS_MAX) -> None:
        self.asked: list[int] = []
        self.rounds: list[tuple[int, int, int, int, int]] = []
        self.is_closed = False
        self._room = room
        self._wakes, self._woken = os.pipe()

    def open_syncs(self) -> tuple[Any, int]:
        return self, self._wakes

    def submit_sync(self, _syncs: Any, descriptor: int) -> bool:
        if len(self.asked) == self._room:
            return False
        self.asked.append(descriptor)
        return True

    def finish(self, error: int = 0, failed: int = 0) -> None:
        """Carry out what was asked for."""
        self.rounds.append((len(self.asked), len(set(self.asked)), 1000, error, failed))
        self.asked.clear()
        os.write(self._woken, b"x")

    def take_synced(self, _syncs: Any) -> tuple[tuple[int, int, int, int, int], ...]:
        os.read(self._wakes, 1)
        taken, self.rounds = tuple(self.rounds), []
        return taken

    def wait_synced(self, _syncs: Any) -> None:
        if not self.rounds:
            self.finish()

    def close_syncs(self, _syncs: Any) -> None:
        self.is_closed = True
        os.close(self._wakes)
        os.close(self._woken)


class Bench:
    """A committer over files of a folder, and the answers that it gave."""

    def __init__(self, folder: Path, functions: Any) -> None:
        self.filesystem = OsFileSystem()
        self.folder = folder
        self.committer = ThreadCommitter(self.filesystem, asyncio.get_running_loop(), "test", functions)
        self.answers: list[tuple[str, OSError | None]] = []
        self._news = asyncio.Event()

    def file(self, name: str) -> OsFile:
        return self.filesystem.open(str(self.folder / name), write=True, create=True)

    def answer(self, name: str) -> Callable[[OSError | None], None]:
        def on_done(error: OSError | None) -> None:
            self.answers.append((name, error))
            self._news.set()

        return on_done

    def sync(self, name: str, file: OsFile | None = None) -> None:
        self.committer.submit(Barrier(files=(self.file(name) if file is None else file,)), self.answer(name))

    def sync_folder(self, name: str) -> None:
        """What only the Python thread does."""
        self.committer.submit(Barrier(directories=(str(self.folder),)), self.answer(name))

    async def until(self, count: int) -> list[str]:
        """The names of what was answered, when so many are."""
        async with asyncio.timeout(10):
            while len(self.answers) < count:
                self._news.clear()
                await self._news.wait()
        return [name for name, _ in self.answers]


def run(folder: Path, functions: Any, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    async def main() -> Bench:
        bench = Bench(folder, functions)
        try:
            await scenario(bench)
        finally:
            bench.committer.close()
        return bench

    return asyncio.run(main())


def test_answers_keep_their_order_across_both_threads(tmp_path: Path) -> None:
    held = HeldSyncs()

    async def scenario(bench: Bench) -> None:
        bench.sync("a")
        bench.sync_folder("b")
        bench.sync("c")
        assert len(held.asked) == 1, "only one thread has work at a time"
        held.finish()
        assert await bench.until(3) == ["a", "b", "c"]
        bench.sync("d")
        assert len(held.asked) == 1, "the other thread is done"
        held.finish()
        await bench.until(4)
        figures = bench.committer.figures
        assert (figures.submitted, figures.answered, figures.syncs) == (4, 4, 4)

    run(tmp_path, held, scenario)
    assert held.is_closed


def test_what_has_no_room_waits_for_the_other_thread_in_its_order(tmp_path: Path) -> None:
    held = HeldSyncs(room=2)

    async def scenario(bench: Bench) -> None:
        for name in "abcd":
            bench.sync(name)
        held.finish()
        assert await bench.until(4) == ["a", "b", "c", "d"]

    run(tmp_path, held, scenario)


def test_after_a_failed_sync_neither_thread_tries_anything(tmp_path: Path) -> None:
    held = HeldSyncs()

    async def scenario(bench: Bench) -> None:
        bench.sync("a")
        bench.sync("b")
        bench.sync_folder("c")
        held.finish(errno.ENOSPC, 1)
        await bench.until(3)
        bench.sync("d")
        assert not held.asked
        await bench.until(4)
        (error,) = {error for _, error in bench.answers}
        assert error is not None
        assert error.filename == str(tmp_path / "b")
        assert not is_passing(error), "trying again proves nothing, though the sync met a full disk"
        assert bench.committer.figures.syncs == 2

    run(tmp_path, held, scenario)


def test_after_a_failure_of_the_thread_nothing_is_synced_quickly(tmp_path: Path) -> None:
    held = HeldSyncs()

    async def scenario(bench: Bench) -> None:
        bench.committer.submit(Barrier(files=(Broken(),)), bench.answer("a"))
        await bench.until(1)
        bench.sync("b")
        await bench.until(2)
        assert not held.asked
        assert all(error is not None and error.errno == errno.EIO for _, error in bench.answers)

    run(tmp_path, held, scenario)


class Broken:
    """A file on a disk that fails."""

    path = "broken"

    def sync(self) -> None:
        raise OSError(errno.EIO, "I/O error", self.path)


def test_a_stop_answers_what_both_threads_have_and_what_follows(tmp_path: Path) -> None:
    held = HeldSyncs()
    answers: list[str] = []

    async def scenario(bench: Bench) -> None:
        file = bench.file("a")

        def first(_error: OSError | None) -> None:
            answers.append("first")
            bench.committer.submit(Barrier(files=(file,)), lambda _error: answers.append("what follows"))

        bench.committer.submit(Barrier(files=(file,)), first)
        bench.committer.submit(Barrier(), lambda _error: answers.append("held"))

    run(tmp_path, held, scenario)
    assert answers == ["first", "held", "what follows"]


@needs_compiled
def test_the_thread_syncs_files_that_are_closed_meanwhile(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(SYNCS_MAX):
            file = bench.file(f"{number % 5}")
            file.pwritev([b"x"], 0)
            bench.sync(f"{number}", file)
            file.close()
        assert await bench.until(SYNCS_MAX) == [f"{number}" for number in range(SYNCS_MAX)]
        assert {error for _, error in bench.answers} == {None}
        figures = bench.committer.figures
        assert figures.submitted == figures.answered == SYNCS_MAX
        assert figures.rounds.total_ns > 0

    run(tmp_path, native.compiled, scenario)


@needs_compiled
def test_a_file_that_two_ask_for_is_synced_once_in_a_round(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        file = bench.file("a")
        for number in range(SYNCS_MAX):
            bench.sync(f"{number}", file)
        await bench.until(SYNCS_MAX)
        rounds = sum(bench.committer.figures.rounds.counts)
        assert bench.committer.figures.syncs == rounds <= SYNCS_MAX

    run(tmp_path, native.compiled, scenario)


@needs_compiled
def test_the_thread_tries_nothing_after_a_failed_sync(tmp_path: Path) -> None:
    """What can't be synced is a pipe."""
    assert native.compiled is not None
    opened = native.compiled.open_syncs()
    assert opened is not None
    syncs, woken = opened
    reading, writing = os.pipe()
    outcomes: list[tuple[int, int]] = []
    with OpenFile(tmp_path / "file") as descriptor:
        for each in (descriptor, writing, descriptor):
            assert native.compiled.submit_sync(syncs, each)
            native.compiled.wait_synced(syncs)
            ((count, synced, _, error, failed),) = native.compiled.take_synced(syncs)
            assert (count, failed) == (1, 0)
            outcomes.append((synced, error))
    assert outcomes == [(1, 0), (1, errno.EINVAL), (0, errno.EINVAL)]
    assert native.compiled.take_synced(syncs) == ()
    native.compiled.wait_synced(syncs)  # Nothing is outstanding.
    native.compiled.close_syncs(syncs)
    with pytest.raises(ValueError, match="stopped"):
        native.compiled.submit_sync(syncs, 0)
    assert woken >= 0
    os.close(reading)
    os.close(writing)


class OpenFile:
    """A descriptor within a `with`."""

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDWR | os.O_CREAT)

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


@needs_compiled
@pytest.mark.parametrize("name", ["submit_sync", "take_synced", "wait_synced", "close_syncs"])
def test_only_a_thread_is_taken_for_one(name: str) -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        getattr(native.compiled, name)(object(), *([1] if name == "submit_sync" else []))


@needs_compiled
def test_a_thread_that_is_forgotten_ends() -> None:
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    assert native.compiled is not None
    before = threads()
    opened = native.compiled.open_syncs()
    assert opened is not None
    (thread,) = threads() - before
    del opened
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if thread not in threads():
            return
        os.sched_yield()
    raise AssertionError("the thread is there still")

"""Barriers: order of steps, group commit, order of answers, and the effect of a failed sync on later barriers."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lowtide.runtime.committer import Barrier, Committer, ThreadCommitter
from lowtide.runtime.filesystem import FileToSync, OsFileSystem, is_passing
from lowtide.runtime.filesystem.memory import MemoryFile, MemoryFileSystem
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedCommitter
from tests.scenarios import played_by, run_async


class RecordingDisk(MemoryFileSystem):
    """Records the steps that make data durable; can delay one sync, as a slow disk does."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.steps: list[str] = []
        self.gate: threading.Event | None = None
        self.held_up = threading.Event()
        self.make_directories("/d")

    def begin(self, operation: Operation, path: str) -> None:
        if operation in {"sync", "rename", "sync_directory"}:
            if self.gate is not None:
                gate, self.gate = self.gate, None
                self.held_up.set()
                assert gate.wait(10)
            self.steps.append(f"{operation} {path}")
        super().begin(operation, path)

    def file(self, name: str) -> MemoryFile:
        return self.open(f"/d/{name}", write=True, create=True)

    def hold_up(self) -> threading.Event:
        """Delay the next step until the returned event is set."""
        self.held_up.clear()
        self.gate = threading.Event()
        return self.gate


class Answers:
    """Collects the arguments of on_done, and its thread."""

    def __init__(self, expected_count: int) -> None:
        self.told: list[tuple[str, OSError | None]] = []
        self.threads: set[int] = set()
        self.done = asyncio.Event()
        self._expected_count = expected_count

    def of(self, name: str) -> Callable[[OSError | None], None]:
        def on_done(error: OSError | None) -> None:
            self.told.append((name, error))
            self.threads.add(threading.get_ident())
            if len(self.told) == self._expected_count:
                self.done.set()

        return on_done


def on_threads(scenario: Callable[[RecordingDisk, Committer], object]) -> RecordingDisk:
    """Run an async scenario with a ThreadCommitter on a real loop."""
    disk = RecordingDisk()

    async def main() -> None:
        committer = ThreadCommitter(disk, asyncio.get_running_loop(), "test-committer")
        try:
            async with asyncio.timeout(10):
                await scenario(disk, committer)  # type: ignore[misc]
        finally:
            committer.close()

    asyncio.run(main())
    return disk


def simulated(scenario: Callable[[RecordingDisk, Committer], object]) -> RecordingDisk:
    """Run an async scenario with a SimulatedCommitter on the simulated loop."""
    disk = RecordingDisk()

    async def main(loop: SimulatedLoop) -> None:
        committer = SimulatedCommitter(disk, loop, Random(1))
        await scenario(disk, committer)  # type: ignore[misc]
        committer.close()

    run_simulation(main, 1)
    return disk


either = pytest.mark.parametrize("run", [on_threads, simulated])


@either
def test_a_barrier_syncs_then_renames_in_order_then_syncs_directories(run: Callable[..., RecordingDisk]) -> None:
    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        answers = Answers(1)
        barrier = Barrier(
            files=(disk.file("b"), disk.file("a")),
            renames=(("/d/b", "/d/c"), ("/d/a", "/d/b")),
            directories=("/d", "/"),
        )
        committer.submit(barrier, answers.of("x"))
        assert answers.told == [], "never answered inside submit"
        await answers.done.wait()
        assert answers.told == [("x", None)]
        assert answers.threads == {threading.get_ident()}

    steps = run(scenario).steps
    assert steps == ["sync /d/b", "sync /d/a", "rename /d/b", "rename /d/a", "sync_directory /d", "sync_directory /"]


@either
def test_an_empty_barrier_is_answered_after_those_before_it(run: Callable[..., RecordingDisk]) -> None:
    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        answers = Answers(3)
        for name, files in (("1", (disk.file("a"),)), ("2", ()), ("3", (disk.file("b"),))):
            committer.submit(Barrier(files=files), answers.of(name))
        await answers.done.wait()
        assert [name for name, _ in answers.told] == ["1", "2", "3"]

    run(scenario)


def test_barriers_that_wait_while_the_disk_is_busy_become_one_round() -> None:
    """Group commit: ten barriers on two files cost two syncs, not ten."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        first, second, answers = disk.file("a"), disk.file("b"), Answers(11)
        gate = disk.hold_up()
        committer.submit(Barrier(files=(first,), directories=("/d",)), answers.of("0"))
        await asyncio.to_thread(disk.held_up.wait, 10)
        for number in range(1, 11):
            committer.submit(Barrier(files=(first, second), directories=("/d",)), answers.of(str(number)))
        gate.set()
        await answers.done.wait()
        assert answers.told == [(str(number), None) for number in range(11)]

    assert on_threads(scenario).steps == [
        "sync /d/a",
        "sync_directory /d",
        "sync /d/a",
        "sync /d/b",
        "sync_directory /d",
    ]


@either
def test_after_a_failed_sync_nothing_more_is_tried(run: Callable[..., RecordingDisk]) -> None:
    """Data of a failed fsync may be lost although a later fsync succeeds."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        file = disk.file("a")
        disk.fail_next("sync", errno.EIO)
        for _ in range(2):
            answers = Answers(1)
            committer.submit(Barrier(files=(file,), renames=(("/d/a", "/d/b"),), directories=("/d",)), answers.of("x"))
            await answers.done.wait()
            assert [error and error.errno for _, error in answers.told] == [errno.EIO]

    disk = run(scenario)
    assert disk.steps == ["sync /d/a"]
    assert disk.exists("/d/a")


@either
def test_a_sync_that_finds_no_room_is_no_temporary_error(run: Callable[..., RecordingDisk]) -> None:
    """Thin volumes and NFS report a full disk there; the state of the file is as unknown as after EIO."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        file = disk.file("a")
        disk.fail_next("sync", errno.ENOSPC)
        for _ in range(2):
            answers = Answers(1)
            committer.submit(Barrier(files=(file,)), answers.of("x"))
            await answers.done.wait()
            error = answers.told[0][1]
            assert error is not None
            assert not is_passing(error)
            assert "No space left on device" in str(error)

    assert run(scenario).steps == ["sync /d/a"]


@either
def test_a_rename_that_finds_no_room_fails_only_its_own_barrier(run: Callable[..., RecordingDisk]) -> None:
    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        disk.file("a")
        disk.fail_next("rename", errno.ENOSPC)
        answers = Answers(2)
        committer.submit(Barrier(renames=(("/d/a", "/d/b"),), directories=("/d",)), answers.of("no room"))
        committer.submit(Barrier(directories=("/d",)), answers.of("good"))
        await answers.done.wait()
        assert [(name, error and error.errno) for name, error in answers.told] == [
            ("no room", errno.ENOSPC),
            ("good", None),
        ]

    assert run(scenario).exists("/d/a")


@either
def test_a_failed_directory_sync_counts_like_a_failed_sync(run: Callable[..., RecordingDisk]) -> None:
    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        disk.fail_next("sync_directory", errno.EIO)
        for _ in range(2):
            answers = Answers(1)
            committer.submit(Barrier(directories=("/d",)), answers.of("x"))
            await answers.done.wait()
            assert [error and error.errno for _, error in answers.told] == [errno.EIO]

    assert run(scenario).steps == ["sync_directory /d"]


@either
def test_a_target_that_is_gone_fails_only_its_own_barrier(run: Callable[..., RecordingDisk]) -> None:
    """A topic deleted while its checkpoint waits must not take the log directory offline."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        closed = disk.file("closed")
        closed.close()
        answers = Answers(5)
        committer.submit(Barrier(files=(closed,), renames=(("/d/a", "/d/b"),)), answers.of("closed file"))
        committer.submit(Barrier(renames=(("/d/none", "/d/x"),), directories=("/d",)), answers.of("renamed file"))
        committer.submit(Barrier(directories=("/d/none",)), answers.of("directory"))
        committer.submit(Barrier(files=(disk.file("a"),), directories=("/d",)), answers.of("good"))
        committer.submit(Barrier(renames=(("/d/a", "/d/b"),)), answers.of("good too"))
        await answers.done.wait()
        assert [(name, error and error.errno) for name, error in answers.told] == [
            ("closed file", errno.EBADF),
            ("renamed file", errno.ENOENT),
            ("directory", errno.ENOENT),
            ("good", None),
            ("good too", None),
        ]

    assert run(scenario).exists("/d/b")


@either
def test_close_answers_everything_that_was_submitted(run: Callable[..., RecordingDisk]) -> None:
    """A clean stop writes its marker after close, and needs the results by then."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        answers = Answers(2)
        committer.submit(Barrier(files=(disk.file("a"),)), answers.of("1"))
        await asyncio.sleep(0)
        committer.submit(Barrier(files=(disk.file("b"),)), answers.of("2"))
        committer.close()
        assert answers.told == [("1", None), ("2", None)]
        committer.close()
        with pytest.raises(AssertionError):
            committer.submit(Barrier(), answers.of("late"))
        await asyncio.sleep(0.01)
        assert len(answers.told) == 2

    assert run(scenario).steps == ["sync /d/a", "sync /d/b"]


@either
def test_close_executes_barriers_that_follow_an_answer(run: Callable[..., RecordingDisk]) -> None:
    """A truncation has several steps, each of which begins when the previous one is durable."""

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        answers = Answers(3)
        first, second = disk.file("a"), disk.file("b")

        def next_step(error: OSError | None) -> None:
            answers.of("1")(error)
            committer.submit(Barrier(files=(second,)), last_step)

        def last_step(error: OSError | None) -> None:
            answers.of("2")(error)
            committer.submit(Barrier(), answers.of("3"))

        committer.submit(Barrier(files=(first,)), next_step)
        committer.close()
        assert answers.told == [("1", None), ("2", None), ("3", None)]
        with pytest.raises(AssertionError):
            committer.submit(Barrier(), answers.of("late"))

    assert run(scenario).steps == ["sync /d/a", "sync /d/b"]


@played_by(on_threads)
async def test_an_answer_that_raises_does_not_prevent_other_answers(
    disk: RecordingDisk, committer: Committer, /
) -> None:
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    answers, gate = Answers(1), disk.hold_up()

    def failing(_: OSError | None) -> None:
        raise ValueError("a bug")

    committer.submit(Barrier(files=(disk.file("a"),)), failing)
    committer.submit(Barrier(files=(disk.file("a"),)), failing)
    committer.submit(Barrier(files=(disk.file("a"),)), answers.of("x"))
    gate.set()
    await answers.done.wait()
    assert [type(error) for error in reported] == [ValueError, ValueError]


@played_by(on_threads)
async def test_a_bug_in_the_file_system_is_answered_and_does_not_hang(
    disk: RecordingDisk, committer: Committer, /
) -> None:
    answers = Answers(2)
    committer.submit(Barrier(files=(disk.file("a"),), renames=(("/d/a", "/elsewhere/a"),)), answers.of("1"))
    committer.submit(Barrier(), answers.of("2"))
    await answers.done.wait()
    assert [error and error.errno for _, error in answers.told] == [errno.EIO, errno.EIO]


def test_the_simulated_effect_and_the_answer_happen_at_different_moments() -> None:
    """A crash between them leaves durable data without an answer, and a crash before them leaves nothing."""
    seen = set()

    for seed in range(60):

        async def main(loop: SimulatedLoop) -> tuple[bytes, bool]:
            disk, random = MemoryFileSystem(Random(loop.random.random())), loop.random
            disk.make_directories("/d")
            disk.write_bytes("/d/a", b"old")
            disk.replace_file("/d/a", b"old")
            disk.sync_directory("/")
            file = disk.open("/d/a", write=True)
            file.pwritev([b"new"], 0)
            told: list[OSError | None] = []
            committer = SimulatedCommitter(disk, loop, random, delay_range_ms=(1.0, 5.0))
            committer.submit(Barrier(files=(file,)), told.append)
            await asyncio.sleep(random.random() * 0.006)
            disk.power_cut()
            return disk.read_bytes("/d/a"), bool(told)

        content, told = run_simulation(main, seed)
        assert content == b"new" or not told, "an answer means durable"
        seen.add((content, told))
    assert seen == {(b"old", False), (b"new", False), (b"new", True)}


def test_a_slow_simulated_disk_has_the_given_speed() -> None:
    async def main(loop: SimulatedLoop) -> float:
        committer = SimulatedCommitter(RecordingDisk(), loop, Random(0))
        committer.delay_range_ms = (7000, 7000)
        done = loop.create_future()
        committer.submit(Barrier(), done.set_result)
        await done
        return loop.time()

    assert run_simulation(main, 0) == pytest.approx(7.0)


@either
@pytest.mark.parametrize("operation", ["file", "directory"])
def test_a_round_that_finds_no_descriptor_waits_for_one(operation: str, run: Callable[..., RecordingDisk]) -> None:
    """For a file that is opened for its sync, or a folder.

    The lack of a descriptor is no result, and no step is repeated.
    """

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        disk.write_bytes("/d/a", b"a")
        disk.write_bytes("/d/b", b"b")
        disk.open_files_max = 0
        answers = Answers(1)
        files = (FileToSync(disk, "/d/a"),) if operation == "file" else ()
        committer.submit(Barrier(files=files, renames=(("/d/b", "/d/c"),), directories=("/d",)), answers.of("barrier"))
        while not disk.fault_counts["no_descriptor"]:
            await asyncio.sleep(0.001)
        assert answers.told == []
        disk.open_files_max = None
        await answers.done.wait()
        assert answers.told == [("barrier", None)]

    assert run(scenario).steps.count("rename /d/b") == 1


@either
def test_a_stop_that_finds_no_descriptor_ends_as_failed(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., RecordingDisk]
) -> None:
    """It does not wait forever, and does not report the disk's state as known."""
    monkeypatch.setattr("lowtide.runtime.committer.RETRY_S", 0.0001)

    async def scenario(disk: RecordingDisk, committer: Committer) -> None:
        disk.open_files_max = 0
        answers = Answers(1)
        committer.submit(Barrier(directories=("/d",)), answers.of("barrier"))
        committer.close()
        ((_, error),) = answers.told
        assert error is not None
        assert not is_passing(error)

    run(scenario)


def test_a_file_to_sync_that_is_gone_needs_no_sync() -> None:
    disk = RecordingDisk()
    FileToSync(disk, "/d/gone").sync()
    assert FileToSync(disk, "/d/x") == FileToSync(disk, "/d/x")


@played_by(run_async)
async def test_a_thread_committer_counts_rounds_syncs_and_what_waits(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    filesystem = OsFileSystem()
    file = filesystem.open(str(tmp_path / "file"), create=True, write=True)
    committer = ThreadCommitter(filesystem, loop, "committer")
    answered: asyncio.Future[OSError | None] = loop.create_future()
    committer.submit(Barrier(files=(file,), directories=(str(tmp_path),)), answered.set_result)
    assert committer.figures.submitted == 1
    assert await answered is None
    figures = committer.figures
    committer.close()
    assert (figures.submitted, figures.answered, figures.syncs, sum(figures.rounds.counts)) == (1, 1, 2, 1)
    assert figures.rounds.longest_ns == figures.rounds.total_ns > 0
    file.close()

"""The SQLite file: what survives a killed process, who may open it, and the effects of a damaged or full file."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lowtide.metadata.embedded import LOCK_SUFFIX, METADATA_FILE, PROBE_SUFFIX, EmbeddedStore, MetadataFileError
from lowtide.metadata.reserve import RESERVE_BYTES, RESERVE_SUFFIX
from lowtide.metadata.store import AmbiguousError, Delete, Put, UnavailableError
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import AlreadyLockedError, OsFileSystem
from tests.scenarios import played_by
from tests.small_disk import Ballast, missing_mounts, small_disk

WRITER = """
import asyncio, sys
from lowtide.metadata.embedded import EmbeddedStore
from lowtide.metadata.store import Put
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem

async def main(path):
    store = await EmbeddedStore.open(path, filesystem=OsFileSystem(), clock=SystemClock())
    lease = await store.lease_grant(60_000)
    before = await store.get(b"a")
    number = 0 if before is None else int(before.value)
    while True:
        number += 1
        value = b"%d" % number
        result = await store.transact([], [Put(b"a", value), Put(b"b", value * 50), Put(b"leased", value, lease)])
        print(number, result.revision, flush=True)

asyncio.run(main(sys.argv[1]))
"""

WRITER_OF_ONE = """
import asyncio, os, signal, sys
from lowtide.metadata.embedded import EmbeddedStore
from lowtide.metadata.store import Put
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem

async def main(path):
    store = await EmbeddedStore.open(path, filesystem=OsFileSystem(), clock=SystemClock())
    await store.transact([], [Put(b"a", b"1")])
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""

KILLS = 12


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(str(path), filesystem=OsFileSystem(), clock=SystemClock(), **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be."""
    return tmp_path / METADATA_FILE


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def write_until_killed(path: Path, answers: int) -> tuple[int, int]:
    """Let a process write, and kill it after so many answers.

    Returns the number and the revision of its last answer.
    """
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(answers)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    whole = [line for line in lines if line.endswith(b"\n")]
    number, revision = whole[-1].split()
    return int(number), int(revision)


def test_nothing_that_was_answered_is_lost_when_the_process_is_killed(path: Path) -> None:
    """SIGKILL during writes, several times on one file.

    Every answered transaction is there whole, revisions continue, leases are gone.
    """
    random = Random(7)
    for _ in range(KILLS):
        number, revision = write_until_killed(path, random.randrange(1, 60))

        async def check(number: int = number, revision: int = revision) -> None:
            async with opened(path) as store:
                a, b = await store.get(b"a"), await store.get(b"b")
                assert a is not None
                assert b is not None
                assert int(a.value) in {number, number + 1}, (
                    "only the transaction that was under way may be there or not"
                )
                assert b.value == a.value * 50, "a transaction is there whole"
                assert a.modify_revision == revision + int(a.value) - number
                assert await store.get(b"leased") is None
                _, now = await store.range(b"")
                assert now == a.modify_revision + 1, (
                    "the leased keys of the killed process were deleted in one revision"
                )

        play(check)


@played_by(play)
async def test_a_second_owner_is_refused(path: Path) -> None:
    """Two brokers on one directory: the second does not start, and does not harm the first."""
    async with opened(path) as store:
        with pytest.raises(AlreadyLockedError, match=METADATA_FILE + LOCK_SUFFIX):
            await EmbeddedStore.open(str(path), filesystem=OsFileSystem(), clock=SystemClock())
        assert (await store.transact([], [Put(b"k", b"")])).succeeded
    async with opened(path) as store:
        assert await store.get(b"k") is not None


@played_by(play)
async def test_only_the_owner_may_read_the_file(path: Path) -> None:
    """It will have credentials: the mode is 0600 from the first byte, also for the files beside it."""
    async with opened(path) as store:
        await store.transact([], [Put(b"k", b"")])
        written = [file for file in path.parent.iterdir() if not file.name.endswith((LOCK_SUFFIX, RESERVE_SUFFIX))]
        assert len(written) == 3, written
        assert {stat.S_IMODE(file.stat().st_mode) for file in written} == {0o600}


@played_by(play)
async def test_every_commit_is_synced(path: Path) -> None:
    """`synchronous` FULL in WAL mode makes an answer survive a power cut.

    No other test would detect a change to NORMAL.
    """
    async with opened(path) as store:
        database = store._journal._database  # type: ignore[attr-defined]
        seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store._journal._worker.submit(  # type: ignore[attr-defined]
            lambda: [
                database._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
            ],
            seen.set_result,
        )
        assert await seen == ["wal", 2]


@played_by(play)
async def test_a_newer_format_is_refused_and_left_alone(path: Path) -> None:
    """A downgrade fails with the file and both versions, and the newer Lowtide finds its file unchanged."""
    async with opened(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(MetadataFileError, match=r"lowtide-metadata.sqlite has format 2; this Lowtide reads up to 1"):
        await EmbeddedStore.open(str(path), filesystem=OsFileSystem(), clock=SystemClock())
    assert path.read_bytes() == before


def test_a_foreign_database_is_refused(path: Path) -> None:
    """Nothing is written into a foreign file."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()

    async def scenario() -> None:
        with pytest.raises(MetadataFileError, match="some other program"):
            await EmbeddedStore.open(str(path), filesystem=OsFileSystem(), clock=SystemClock())

    play(scenario)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 50, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_named(path: Path, content: bytes) -> None:
    """The broker names the file, and releases the lock so that it can be repaired and started again."""
    path.write_bytes(content)

    async def scenario() -> None:
        with pytest.raises(MetadataFileError, match="lowtide-metadata.sqlite"):
            await EmbeddedStore.open(str(path), filesystem=OsFileSystem(), clock=SystemClock())
        path.unlink()
        async with opened(path) as store:
            assert await store.range(b"") == ([], 0)

    play(scenario)


@played_by(play)
async def test_a_full_file_refuses_and_recovers(path: Path) -> None:
    """A full disk is not a failed one.

    What does not fit is refused whole, reads and leases continue, and deletions free space.
    """
    async with opened(path, max_bytes=40 * 4096) as store:
        await store.transact([], [Put(b"small", b"1")])
        stored = 0
        with pytest.raises(UnavailableError, match="full"):
            for stored in range(100):
                await store.transact([], [Put(b"big%d" % stored, bytes(8192)), Put(b"small", b"%d" % stored)])
        assert stored > 5
        small = await store.get(b"small")
        assert small is not None
        assert small.value == b"%d" % (stored - 1), "the refused transaction left nothing behind"
        for number in range(stored):
            await store.transact([], [Delete(b"big%d" % number)])
        assert (await store.transact([], [Put(b"big", bytes(8192))])).succeeded
    async with opened(path) as store:
        assert [pair.key for pair in (await store.range(b""))[0]] == [b"big", b"small"]


@pytest.mark.skipif(missing_mounts() is not None, reason=str(missing_mounts()))
def test_a_full_disk_does_not_keep_the_store_from_opening(tmp_path: Path) -> None:
    """A start writes to the store, and only a started broker can free the disk by deletes and retention.

    Space is reserved for that.
    """
    with small_disk(tmp_path / "disk", 2 << 20) as folder:
        path = folder / METADATA_FILE
        ran = subprocess.run(
            [sys.executable, "-c", WRITER_OF_ONE, str(path)], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "written\n"), ran.stderr
        Ballast(folder).fill_up()

        async def scenario() -> None:
            async with opened(path) as store:
                assert [pair.key for pair in (await store.range(b""))[0]] == [b"a"]
                await store.transact([], [Put(b"b", b"2")])
            assert path.with_name(path.name + RESERVE_SUFFIX).stat().st_size == RESERVE_BYTES // 2
            Ballast(folder).throw_out()
            async with opened(path) as store:
                assert [pair.key for pair in (await store.range(b""))[0]] == [b"a", b"b"]
            assert path.with_name(path.name + RESERVE_SUFFIX).stat().st_size == RESERVE_BYTES

        play(scenario)


@pytest.mark.skipif(missing_mounts() is not None, reason=str(missing_mounts()))
def test_on_a_full_disk_what_deletes_is_written(tmp_path: Path) -> None:
    """A topic is deleted though there is no room for a page: what it had makes room.

    Other writes wait, and a start has its reserve.
    """
    with small_disk(tmp_path / "disk", 2 << 20) as folder:
        path = folder / METADATA_FILE
        reserve = path.with_name(path.name + RESERVE_SUFFIX)

        async def scenario() -> None:
            async with opened(path) as store:
                await store.transact([], [Put(b"a", b"1"), Put(b"b", b"2")])
                Ballast(folder).fill_up()
                with pytest.raises(UnavailableError, match="full"):
                    await store.transact([], [Put(b"c", b"3")])
                assert reserve.stat().st_size == RESERVE_BYTES
                assert (await store.transact([], [Delete(b"a"), Put(b"b", b"4")])).succeeded
                assert reserve.stat().st_size == RESERVE_BYTES // 2
                assert (await store.transact([], [Delete(b"b")])).succeeded
                Ballast(folder).throw_out()
                assert (await store.transact([], [Put(b"c", b"3")])).succeeded
                assert reserve.stat().st_size == RESERVE_BYTES
            async with opened(path) as store:
                assert [pair.key for pair in (await store.range(b""))[0]] == [b"c"]

        play(scenario)


@pytest.mark.skipif(missing_mounts() is not None, reason=str(missing_mounts()))
def test_crashes_on_a_full_disk_do_not_keep_the_store_from_opening(tmp_path: Path) -> None:
    """Each start leaves space for the next one, even if other files take the rest."""
    with small_disk(tmp_path / "disk", 4 << 20) as folder:
        path = folder / METADATA_FILE
        for _ in range(5):
            ran = subprocess.run(
                [sys.executable, "-c", WRITER_OF_ONE, str(path)], capture_output=True, text=True, check=False
            )
            assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "written\n"), ran.stderr
            Ballast(folder).fill_up()


class QuotaFileSystem(OsFileSystem):
    """The file system of a user whose quota is exhausted, if `is_exhausted`."""

    is_exhausted = True

    def write_bytes(self, path: str, data: bytes) -> None:
        if self.is_exhausted and path.endswith(PROBE_SUFFIX):
            raise OSError(errno.EDQUOT, "quota exceeded", path)
        super().write_bytes(path, data)


@contextmanager
def failing_writes(path: Path) -> Iterator[None]:
    """Every write that extends the log beside the file fails, with an error that SQLite does not know (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@played_by(play)
async def test_an_exhausted_quota_is_no_disk_failure(path: Path) -> None:
    """A transaction that does not fit is refused and leaves nothing; when there is space again, the store continues."""
    store = await EmbeddedStore.open(str(path), filesystem=QuotaFileSystem(), clock=SystemClock())
    await store.transact([], [Put(b"a", b"1")])
    with failing_writes(path), pytest.raises(UnavailableError):
        await store.transact([], [Put(b"a", b"2"), Put(b"b", bytes(8192))])
    assert store.failure is None
    assert (await store.transact([], [Put(b"c", b"3")])).revision == 2
    await store.close()
    async with opened(path) as again:
        assert [(pair.key, pair.value) for pair in (await again.range(b""))[0]] == [(b"a", b"1"), (b"c", b"3")]
    assert not path.with_name(path.name + PROBE_SUFFIX).exists()


@played_by(play)
async def test_a_write_that_fails_with_free_space_is_a_disk_failure(path: Path) -> None:
    filesystem = QuotaFileSystem()
    filesystem.is_exhausted = False
    store = await EmbeddedStore.open(str(path), filesystem=filesystem, clock=SystemClock())
    await store.transact([], [Put(b"a", b"1")])
    with failing_writes(path), pytest.raises(AmbiguousError):
        await store.transact([], [Put(b"b", bytes(8192))])
    assert store.failure is not None
    await store.close()


@played_by(play)
async def test_after_a_failed_write_the_store_is_out_of_service(path: Path) -> None:
    """The contents of the disk are unknown then: this transaction is ambiguous, and all later calls are refused."""
    async with opened(path) as store:
        closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        database = store._journal._database  # type: ignore[attr-defined]
        store._journal._worker.submit(lambda: database._connection.execute("DROP TABLE keys"), closed.set_result)  # type: ignore[attr-defined]
        await closed
        with pytest.raises(AmbiguousError, match="lowtide-metadata.sqlite"):
            await store.transact([], [Put(b"k", b"")])
        with pytest.raises(UnavailableError, match="failed"):
            await store.get(b"k")
        with pytest.raises(UnavailableError, match="failed"):
            await store.lease_grant(1000)

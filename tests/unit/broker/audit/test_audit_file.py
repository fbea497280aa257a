"""The file of the audit log: rotated, moved by others, slow, full, and closed."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.audit import audit_file
from lowtide.broker.audit.audit_file import WARN_INTERVAL_MS, AuditFile, RotatedFile
from lowtide.runtime.filesystem import OsFileSystem


class HeldWorker:
    """Work waits until it is let go."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self.jobs.append((work, on_done))

    def close(self) -> None:
        self.run()

    def run(self) -> None:
        while self.jobs:
            work, on_done = self.jobs.pop(0)
            on_done(work())


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


class World:
    def __init__(self, directory: Path, *, bytes_max: int = 1 << 20, files_max: int = 3) -> None:
        self.path = directory / "audit.log"
        self.now_ms = 1_000
        self.worker, self.log = HeldWorker(), Log()
        clock: Any = SimpleNamespace(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: 0)
        self.rotated = RotatedFile(OsFileSystem(), str(self.path), bytes_max=bytes_max, files_max=files_max)
        self.file = AuditFile(self.rotated, self.worker, clock, self.log)

    def write(self, *lines: bytes) -> None:
        for line in lines:
            self.file.info(line + b"\n")
        self.worker.run()

    def read(self, suffix: str = "") -> list[bytes]:
        return Path(f"{self.path}{suffix}").read_bytes().splitlines()


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"1", b"2")
    assert world.read() == [b"1", b"2"]
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600


def test_it_goes_on_where_the_broker_before_ended(tmp_path: Path) -> None:
    World(tmp_path).write(b"1")
    world = World(tmp_path)
    world.write(b"2")
    assert world.read() == [b"1", b"2"]


def test_it_is_rotated_by_size_and_the_oldest_file_goes(tmp_path: Path) -> None:
    world = World(tmp_path, bytes_max=10)
    world.write(*(str(number).encode() * 4 for number in range(8)))
    assert world.read() == [b"6666", b"7777"]
    assert world.read(".1") == [b"4444", b"5555"]
    assert world.read(".2") == [b"2222", b"3333"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in tmp_path.iterdir())
    world.write(b"a line that is longer than a file may be")
    assert world.read() == [b"a line that is longer than a file may be"]


@pytest.mark.parametrize("rotate", ["rename", "create", "remove", "copytruncate"])
def test_it_is_opened_again_after_others_rotated_it(tmp_path: Path, rotate: str) -> None:
    world = World(tmp_path)
    world.write(b"1")
    if rotate in ("rename", "create"):
        world.path.rename(tmp_path / "elsewhere")
    if rotate == "create":
        world.path.touch()
    if rotate == "remove":
        world.path.unlink()
    if rotate == "copytruncate":
        world.path.write_bytes(b"")
    world.write(b"2")
    world.write(b"3")
    assert world.read() == [b"2", b"3"]


def test_a_slow_disk_holds_up_nothing_and_costs_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "WAITING_BYTES_MAX", 30)
    world = World(tmp_path)
    for number in range(100):
        world.file.info(b"%08d\n" % number)
    assert len(world.worker.jobs) == 1, "one write at a time"
    world.worker.run()
    lines = world.read()
    assert lines[0] == b"%08d" % 0
    assert len(lines) == 5
    lost = msgspec.json.decode(lines[1])
    assert (lost["event"], lost["count"]) == ("lost", 96)
    assert len(world.log.lines) == 1
    world.write(b"later")
    assert world.read()[-1] == b"later"


def test_a_full_disk_is_a_warning_a_minute_and_a_line_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.write(b"before")
    with monkeypatch.context() as full:

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr("lowtide.runtime.filesystem.os_file.OsFile.pwritev", refuse)
        for _ in range(3):
            world.write(b"x")
        assert [line["reason"] for line in world.log.lines] == ["No space left on device"]
        world.now_ms += WARN_INTERVAL_MS
        world.write(b"x")
        assert [line["lines_lost"] for line in world.log.lines] == [1, 4]
    world.write(b"after")
    first, lost, last = world.read()
    assert (first, last) == (b"before", b"after")
    assert msgspec.json.decode(lost) == {"event": "lost", "count": 4, "timestamp": "1970-01-01T00:00:00Z"}


def test_what_waits_at_a_stop_is_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.info(b"1\n")
    world.file.info(b"2\n")
    world.file.close()
    world.worker.close()
    assert world.read() == [b"1", b"2"]
    world.file.info(b"3\n")
    assert world.worker.jobs == []
    assert world.read() == [b"1", b"2", b"3"]
    world.file.close()


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        RotatedFile(OsFileSystem(), str(tmp_path / "no" / "audit.log"), bytes_max=1, files_max=2)

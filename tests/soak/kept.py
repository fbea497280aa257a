"""The folder of a soak: what it needs to continue after its program has ended in any way.

    state.json              numbers that go up, and what has been set up once
    pieces.jsonl            a line for each start: commit, machine, time; and a line for what failed in it
    samples.jsonl           a line for each sample (`samples.py`)
    cluster/, warehouse/    log directories, etcd's data, the table
    history-N.jsonl         what clients did to the topic that is checked now (`history.py`)

One program at a time uses a folder. State is replaced in one step; a line that a kill truncated is skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


class State(msgspec.Struct):
    """Numbers that are never used twice, and what need not be done again."""

    name: str = msgspec.field(default_factory=lambda: secrets.token_hex(4))
    """The soak, in lines that are published."""
    pieces: int = 0
    checked: int = 0
    """The number of the topic whose history is checked now."""
    persons: int = 0
    """The next person whose records are written."""
    standing: bool = False
    """Whether the standing erasure has begun."""


class Begun(msgspec.Struct, frozen=True):
    """The beginning of a piece, or with `failed` what failed in it."""

    piece: int
    began: str
    commit: str = ""
    machine: str = ""
    failed: str = ""


class SoakFolder:
    """The files of one folder, and its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        file = path / "state.json"
        self.state = msgspec.json.decode(file.read_bytes(), type=State) if file.exists() else State()

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def pieces(self) -> Path:
        return self.path / "pieces.jsonl"

    def save(self) -> None:
        """Replaces the state on the disk."""
        new = self.path / "state.new"
        new.write_bytes(msgspec.json.encode(self.state))
        os.replace(new, self.path / "state.json")

    def begin_piece(self) -> int:
        """Counts a piece. Returns its number, from one on."""
        self.state.pieces += 1
        self.save()
        add_line(self.pieces, Begun(self.state.pieces, now(), commit(), machine()))
        return self.state.pieces

    def failed(self, reason: str) -> None:
        """Keeps what failed in this piece."""
        add_line(self.pieces, Begun(self.state.pieces, now(), failed=reason))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Errors: BlockingIOError if another program uses the folder."""
        with (self.path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield


def add_line(path: Path, value: Any) -> None:
    """Appends a line with one write. What a kill truncated before ends there."""
    with path.open("ab+", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(msgspec.json.encode(value) + b"\n")


def lines(path: Path, kind: type[T]) -> list[T]:
    """Returns the whole lines of a file; none if it is missing."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=kind))
    return found


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit() -> str:
    """Returns the commit of the tree, with a plus sign if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + "+" * bool(changed)


def machine() -> str:
    """Returns a number of this start of the machine, and its processors. No name of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    processors = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(":")[2].strip() for line in processors.splitlines() if "model name" in line), "?")
    return f"{boot.read_text()[:8] if boot.exists() else '?'}, {os.cpu_count()} cores, {model}"

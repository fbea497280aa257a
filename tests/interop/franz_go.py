"""franz-go as a program (`go/`): built once, and run for each request of a test."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BASE_TIME_MS = 1_700_000_000_000
SOURCE = Path(__file__).parent / "go"
BUILD_TIMEOUT_S = 300
CALL_TIMEOUT_S = 60


def build(folder: Path) -> Path:
    """Builds the program in `folder`. Returns its path. Go's own environment defines the source of modules.

    Errors: AssertionError with Go's output.
    """
    program = folder / "franzgo"
    done = subprocess.run(
        ["go", "build", "-o", program, "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"go build: {done.stderr[-2000:]}"
    return program


class Record(NamedTuple):
    """A record to send, or one that was read."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    partition: int = 0

    def line(self) -> str:
        """Returns the input line for the program; with time 0 the client sets the time."""
        headers = [{"name": name, "value": coded(value)} for name, value in self.headers]
        given = {"partition": self.partition, "key": coded(self.key), "value": coded(self.value), "headers": headers}
        return json.dumps(given | {"timestamp_ms": self.timestamp_ms}) + "\n"


def coded(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def plain(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def record(line: dict[str, Any]) -> Record:
    """Returns the record in a line that the program printed."""
    headers = tuple((header["name"], plain(header["value"])) for header in line["headers"])
    return Record(plain(line["value"]), plain(line["key"]), headers, line["timestamp_ms"], line["partition"])


def write(process: subprocess.Popen[str], line: str) -> None:
    """Gives the program one line of input."""
    assert process.stdin is not None
    process.stdin.write(line)


def read_line(process: subprocess.Popen[str]) -> str:
    """Waits for the program's next line; it ends after its -timeout, and then there is none."""
    assert process.stdout is not None
    return process.stdout.readline()


def numbered(count: int, *, first: int = 0, partition: int = 0) -> list[Record]:
    """Records one second apart whose values differ and compress."""
    return [
        Record(b"value-%d " % n * 10, b"key-%d" % n, timestamp_ms=BASE_TIME_MS + n * 1000, partition=partition)
        for n in range(first, first + count)
    ]


class FranzGoError(Exception):
    """The client failed; has its message."""


class FranzGo:
    """The client, against one broker."""

    def __init__(self, program: Path, bootstrap: str) -> None:
        self._program = program
        self._bootstrap = bootstrap

    def command(self, name: str, **flags: Any) -> list[str]:
        """Returns the command line; `max_bytes=5` is -max-bytes=5, a list repeats the flag."""
        words = [str(self._program), name, f"-bootstrap={self._bootstrap}"]
        for flag, given in flags.items():
            values = given if isinstance(given, list) else [str(given).lower() if isinstance(given, bool) else given]
            words += [f"-{flag.replace('_', '-')}={value}" for value in values]
        return words

    def run(self, name: str, *, text: str = "", **flags: Any) -> list[dict[str, Any]]:
        """Runs to the end. Returns the lines. Errors: `FranzGoError`."""
        command = self.command(name, **flags)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
        if done.returncode:
            raise FranzGoError(f"{' '.join(command)}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def one(self, name: str, **flags: Any) -> dict[str, Any]:
        """Returns the only line."""
        [line] = self.run(name, **flags)
        return line

    @contextmanager
    def open(self, name: str, **flags: Any) -> Iterator[subprocess.Popen[str]]:
        """Runs it beside the test, which writes and reads lines."""
        command = self.command(name, **flags)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def produce(self, topic: str, records: Iterable[Record], **flags: Any) -> list[dict[str, Any]]:
        """Sends records, waits for all acknowledgements, and returns the client's results."""
        done = self.run("produce", topic=topic, text="".join(record.line() for record in records), **flags)
        faults = [line for line in done if line["error"]]
        assert not faults, f"{len(faults)} of {len(done)} refused, the first: {faults[0]}"
        return done

    def consume(self, topic: str, count: int, **flags: Any) -> list[dict[str, Any]]:
        """Reads `count` records of assigned partitions."""
        return self.run("consume", topic=topic, count=count, **flags)

    def offsets(self, topic: str, at: str = "end") -> dict[int, int]:
        """One kind of offset of each partition."""
        listed = self.run("list-offsets", topic=topic, at=at)
        assert not any(line["error"] for line in listed), listed
        return {line["partition"]: line["offset"] for line in listed}

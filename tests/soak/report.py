"""Writes the report of a soak, and decides which of its figures are failures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from .samples import Piece, Sample, quantile_ms, times_of
from .trend import Line, Trend, trend, warm

GAIN_ALLOWED, UNITS_ALLOWED = 0.05, 2.0
"""A figure fails if it certainly gained more than this share and this many MiB, descriptors or threads."""

JUDGED_FROM_H = 1.0
"""Before, caches still fill: the slopes are shown only."""

JUDGED = ("resident MiB", "descriptors", "threads", "disk MiB", "etcd in use MiB")
"""The ends of the names that must not rise. CPU and etcd's file (which is never given back) are shown only."""


def line_of(piece: Piece, name: str) -> Line:
    """Returns a figure of a piece without its beginning."""
    return warm([(sample.seconds, sample.figures[name]) for sample in piece.samples if name in sample.figures])


def trends(pieces: Sequence[Piece]) -> dict[str, Trend]:
    """Returns the trends of all pieces together by name, of figures with enough samples."""
    names = dict.fromkeys(name for piece in pieces for sample in piece.samples for name in sample.figures)
    found = {name: trend(*(line_of(piece, name) for piece in pieces)) for name in names}
    return {name: of_name for name, of_name in found.items() if of_name is not None}


def rising(found: Mapping[str, Trend], lived: Sequence[str]) -> list[str]:
    """Names that must not rise: of brokers only those in `lived`, which lived through their piece."""
    return [
        name
        for name, of_name in found.items()
        if name.endswith(JUDGED)
        and of_name.hours >= JUDGED_FROM_H
        and (not name.startswith("broker") or name.endswith("disk MiB") or name.startswith(tuple(lived)))
        and of_name.gained > max(GAIN_ALLOWED * abs(of_name.first), UNITS_ALLOWED)
    ]


def table(found: Mapping[str, Trend]) -> list[str]:
    """Returns a Markdown table with a row for each figure."""
    rows = ["| figure | first quarter | last quarter | slope an hour | 95 % interval |", "|---|---|---|---|---|"]
    for name, of_name in sorted(found.items()):
        interval = f"{of_name.low:+.2f} to {of_name.high:+.2f}"
        rows.append(f"| {name} | {of_name.first:.1f} | {of_name.last:.1f} | {of_name.per_hour:+.2f} | {interval} |")
    return rows


def quarters(pieces: Sequence[Piece]) -> list[list[Sample]]:
    """Returns all samples in four parts of equal number, in order of time."""
    samples = [sample for piece in pieces for sample in piece.samples]
    ends = [len(samples) * quarter // 4 for quarter in range(5)]
    return [samples[begin:end] for begin, end in pairwise(ends)]


def latencies(pieces: Sequence[Piece]) -> list[str]:
    """Returns a Markdown table of the times of single records, for each quarter of the time."""
    rows = ["| one record, acks=all, ms at most | quarter 1 | 2 | 3 | 4 |", "|---|---|---|---|---|"]
    times = [times_of(quarter) for quarter in quarters(pieces)]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        found = [quantile_ms(each, share) for each in times]
        rows.append(f"| {name} | " + " | ".join("" if each is None else f"{each:.1f}" for each in found) + " |")
    rows.append("| records | " + " | ".join(f"{sum(each.values()):,}" for each in times) + " |")
    return rows


def piece_rows(pieces: Sequence[Piece], name: str) -> list[str]:
    """Returns a Markdown table with a row for each piece; `name` is the figure whose slope is shown."""
    rows = [f"| began | commit | machine | hours | {name}: slope an hour, 95 % | failed |", "|---|---|---|---|---|---|"]
    for piece in pieces:
        found = trend(line_of(piece, name))
        slope = "" if found is None else f"{found.per_hour:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
        where = f"{piece.began} | {piece.commit} | {piece.machine}"
        rows.append(f"| {where} | {piece.seconds / 3600:.2f} | {slope} | {'; '.join(piece.failed) or 'nothing'} |")
    return rows


def report(pieces: Sequence[Piece], lived: str) -> list[str]:
    """Returns the report of all pieces: their times, what was done, slopes and latencies. `lived`: see `rising`."""
    counts = Counter[str]()
    for piece in pieces:
        counts.update(piece.counts)
    hours = sum(piece.seconds for piece in pieces) / 3600
    machines, commits = {piece.machine for piece in pieces}, {piece.commit for piece in pieces}
    began = f"{hours:.2f} hours in {len(pieces)} pieces on {len(machines)} machines, {len(commits)} commits"
    if hours < JUDGED_FROM_H:
        began += f". Slopes are judged from {JUDGED_FROM_H:.0f} hour on"
    if len(pieces) > 1:
        began += ". Pieces are joined by their samples: each has its own height, and all have one slope"
    done = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    parts = [[began, done], piece_rows(pieces, f"{lived}resident MiB"), table(trends(pieces)), latencies(pieces)]
    return [line for part in parts for line in (*part, "")][:-1]

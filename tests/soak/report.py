"""The table of a soak, and what of it is a failure. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .trend import Trend, trend, warm

GAIN_ALLOWED, UNITS_ALLOWED = 0.05, 2.0
"""A figure fails if it certainly gained more than this share and this many MiB, descriptors or threads."""

JUDGED = ("resident MiB", "descriptors", "threads", "disk MiB", "etcd in use MiB")
"""The ends of the names that must not rise. Latencies and etcd's file (which is never given back) are shown only."""

Samples = Sequence[tuple[float, Mapping[str, float]]]


def trends(samples: Samples) -> dict[str, Trend]:
    """The trends by name, of figures with enough samples."""
    names = dict.fromkeys(name for _, sample in samples for name in sample)
    found = {}
    for name in names:
        of_name = trend(warm([(seconds, sample[name]) for seconds, sample in samples if name in sample]))
        if of_name is not None:
            found[name] = of_name
    return found


def rising(found: Mapping[str, Trend], lived: Sequence[str]) -> list[str]:
    """Names that must not rise: of brokers only those in `lived`, which lived through the run."""
    return [
        name
        for name, of_name in found.items()
        if name.endswith(JUDGED)
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

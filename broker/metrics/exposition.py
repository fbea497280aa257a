"""Writes metrics in Prometheus's text format or in OpenMetrics, into pieces of bytes.

A page is a row of families; the samples of one follow its head without a break. Values are read by the caller, who
writes in bounded steps. The two formats differ in the names of counters' families, in the bounds of histograms and in
the end of the page.

Sources: Prometheus text format 0.0.4, OpenMetrics 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from lowtide.broker.metrics.metric import Kind, Metric

PIECE_LINES: Final = 500
"""So many lines, some fifty kilobytes, become bytes at once: a fraction of a millisecond."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Format(Enum):
    """The values are the types of the content."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def accepted_format(accept: str) -> Format:
    """What a client that sends this `Accept` reads: OpenMetrics if it names it, unless it prefers the text format."""
    weights = {Format.OPEN_METRICS: 0.0, Format.TEXT: 0.0}
    for part in accept.split(","):
        kind, *parameters = (piece.strip() for piece in part.lower().split(";"))
        weight = next((_weight(each[2:]) for each in parameters if each.startswith("q=")), 1.0)
        if kind == "application/openmetrics-text":
            weights[Format.OPEN_METRICS] = max(weights[Format.OPEN_METRICS], weight)
        elif kind in ("text/plain", "text/*", "*/*", ""):
            weights[Format.TEXT] = max(weights[Format.TEXT], weight)
    is_open = weights[Format.OPEN_METRICS] > 0 and weights[Format.OPEN_METRICS] >= weights[Format.TEXT]
    return Format.OPEN_METRICS if is_open else Format.TEXT


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def escaped(value: str) -> str:
    """The value of a label as it is written between quotation marks."""
    return value.translate(_ESCAPES)


def labelled(metric: Metric, values: Sequence[object]) -> str:
    """The labels of one series, with the braces."""
    return (
        "{"
        + ",".join(f'{name}="{escaped(str(value))}"' for name, value in zip(metric.labels, values, strict=True))
        + "}"
    )


class Page:
    """One page while it is written."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.pieces: list[bytes] = []
        """What is written, in order; `finish` adds the rest."""
        self._lines: list[str] = []
        self._seen: set[str] = set()

    def begin(self, metric: Metric) -> str:
        """Begin the family of a metric, and return the name that its samples begin with."""
        assert metric.name not in self._seen, f"{metric.name} has two families"
        self._seen.add(metric.name)
        family, name, kind = metric.name, metric.name, metric.kind.value
        if metric.kind is Kind.COUNTER:
            if name.endswith("_total"):
                family = name if self.form is Format.TEXT else name.removesuffix("_total")
            else:  # The names are those of existing boards; readers would add the ending to a counter's.
                kind = "untyped" if self.form is Format.TEXT else "unknown"
        self._lines.append(f"# HELP {family} {metric.help.translate(_ESCAPES)}\n# TYPE {family} {kind}\n")
        return name

    def one(self, metric: Metric, value: float) -> None:
        """Write a metric that has a single series."""
        self._lines.append(f"{self.begin(metric)} {value}\n")

    def rows(self, metric: Metric, rows: Iterable[tuple[Sequence[object], float]]) -> None:
        """Write a metric of a few series: the values of the labels, and the value of each."""
        name = self.begin(metric)
        self.write([f"{name}{labelled(metric, values)} {value}\n" for values, value in rows])

    def more(self, metric: Metric, rows: Iterable[tuple[Sequence[object], float]]) -> None:
        """Write samples of the family that was begun last, which is this metric's."""
        self.write([f"{metric.name}{labelled(metric, values)} {value}\n" for values, value in rows])

    def write(self, lines: list[str]) -> None:
        """Write samples of the family that was begun last, each with its line's end."""
        self._lines += lines
        if len(self._lines) >= PIECE_LINES:
            self._flush()

    def histogram(
        self, metric: Metric, rows: Iterable[tuple[Sequence[object], Sequence[float], Sequence[int], float]]
    ) -> None:
        """Write a histogram: of each series the labels' values, the upper bounds, counts of values at or below each and of all, the sum."""
        name = self.begin(metric)
        for values, bounds, cumulative, total in rows:
            labels = labelled(metric, values)[1:-1]
            comma = "," if labels else ""
            rest = f"{{{labels}}}" if labels else ""
            lines = [
                f'{name}_bucket{{{labels}{comma}le="{float(bound)}"}} {count}\n'
                for bound, count in zip(bounds, cumulative, strict=False)
            ]
            lines += [
                f'{name}_bucket{{{labels}{comma}le="+Inf"}} {cumulative[-1]}\n',
                f"{name}_sum{rest} {total}\n",
                f"{name}_count{rest} {cumulative[-1]}\n",
            ]
            self.write(lines)

    def finish(self) -> list[bytes]:
        """End the page; nothing can be written any more."""
        if self.form is Format.OPEN_METRICS:
            self._lines.append("# EOF\n")
        self._flush()
        return self.pieces

    def _flush(self) -> None:
        if self._lines:
            self.pieces.append("".join(self._lines).encode())
            self._lines.clear()

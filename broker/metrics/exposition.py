"""Writes metrics in Prometheus's text format or in OpenMetrics, into pieces of bytes.

A page is a sequence of families, each with its head and its samples. The caller reads the values and writes in bounded
steps. The formats differ in the names of counters, in the bounds of histograms, and at the end of the page.

Sources: Prometheus text format 0.0.4, OpenMetrics 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from lowtide.broker.metrics.metric import Metric, MetricKind

PIECE_LINES: Final = 500
"""The number of lines, about fifty kilobytes, that are encoded at once in a fraction of a millisecond."""

SERIES_A_STEP: Final = 200

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Format(Enum):
    """The values are the content types."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def accepted_format(accept: str) -> Format:
    """Returns the format for an `Accept` header: OpenMetrics if it is named, unless the text format is preferred."""
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
    """Escapes a label value."""
    return value.translate(_ESCAPES)


def labelled(metric: Metric, values: Sequence[object]) -> str:
    """Returns the labels of one series, with braces."""
    return (
        "{"
        + ",".join(f'{name}="{escaped(str(value))}"' for name, value in zip(metric.labels, values, strict=True))
        + "}"
    )


class Page:
    """A page that is being written."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.pieces: list[bytes] = []
        """The written pieces, in order; `finish` adds the rest."""
        self._lines: list[str] = []
        self._seen: set[str] = set()

    def begin(self, metric: Metric) -> str:
        """Starts the family of a metric, and returns the name for its samples."""
        assert metric.name not in self._seen, f"{metric.name} has two families"
        self._seen.add(metric.name)
        family, name, kind = metric.name, metric.name, metric.kind.value
        if metric.kind is MetricKind.COUNTER:
            if name.endswith("_total"):
                family = name if self.form is Format.TEXT else name.removesuffix("_total")
            else:  # Names from existing dashboards; readers would add the suffix to those of counters.
                kind = "untyped" if self.form is Format.TEXT else "unknown"
        self._lines.append(f"# HELP {family} {metric.help.translate(_ESCAPES)}\n# TYPE {family} {kind}\n")
        return name

    def one(self, metric: Metric, value: float) -> None:
        self._lines.append(f"{self.begin(metric)} {value}\n")

    def rows(self, metric: Metric, rows: Iterable[tuple[Sequence[object], float]]) -> None:
        """Writes a metric with a few series: label values, and the value of each."""
        name = self.begin(metric)
        self.write([f"{name}{labelled(metric, values)} {value}\n" for values, value in rows])

    def series(self, metric: Metric, samples: Iterable[str], *, begins: bool = True) -> Iterator[None]:
        """Writes a metric of many series, in steps. `samples` are labels and values; `begins` starts a family."""
        name = self.begin(metric) if begins else metric.name
        left = iter(samples)
        while some := [f"{name}{sample}\n" for sample in islice(left, SERIES_A_STEP)]:
            self.write(some)
            yield

    def write(self, lines: list[str]) -> None:
        """Writes samples of the current family, each with its line end."""
        self._lines += lines
        if len(self._lines) >= PIECE_LINES:
            self._flush()

    def histogram(
        self, metric: Metric, rows: Iterable[tuple[Sequence[object], Sequence[float], Sequence[int], float]]
    ) -> None:
        """Writes a histogram: per series label values, upper bounds, cumulative counts with the total, and the sum."""
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
        if self.form is Format.OPEN_METRICS:
            self._lines.append("# EOF\n")
        self._flush()
        return self.pieces

    def _flush(self) -> None:
        if self._lines:
            self.pieces.append("".join(self._lines).encode())
            self._lines.clear()

"""The declaration of a metric: name, kind, unit, labels, and a help sentence."""

from __future__ import annotations

from enum import Enum

import msgspec


class MetricKind(Enum):
    """The kind of a metric, as in the text formats."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"

    __hash__ = object.__hash__


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. Most counters' names end with `_total`."""

    name: str
    kind: MetricKind
    help: str
    unit: str = ""
    """`seconds`, `bytes`, `ms`, ...; empty for counts."""
    labels: tuple[str, ...] = ()

    @property
    def has_partition(self) -> bool:
        """Whether it has a series per partition, which a configuration key disables."""
        return "partition" in self.labels


def counter(name: str, text: str, *labels: str, unit: str = "") -> Metric:
    """Declares a counter."""
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, labels=labels, unit=unit)


def gauge(name: str, text: str, *labels: str, unit: str = "") -> Metric:
    """Declares a gauge."""
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=labels, unit=unit)


def histogram(name: str, text: str, *labels: str, unit: str = "seconds") -> Metric:
    """Declares a histogram."""
    return Metric(name=name, kind=MetricKind.HISTOGRAM, help=text, labels=labels, unit=unit)

"""A metric as it is declared: name, kind, unit, labels, and a sentence of help."""

from __future__ import annotations

from enum import Enum

import msgspec


class Kind(Enum):
    """What the values of a metric are. The values are the words of the text formats."""

    COUNTER = "counter"
    """Rises, and begins at 0 when the broker starts."""
    GAUGE = "gauge"
    """Rises and falls."""
    HISTOGRAM = "histogram"
    """Counts of values up to bounds, with their sum."""

    __hash__ = object.__hash__


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. A counter's name is the one that is scraped; in most of them it ends with `_total`."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    """`seconds`, `bytes`, `ms`, ...; empty for counts, which are the most."""
    labels: tuple[str, ...] = ()

    @property
    def has_partition(self) -> bool:
        """Whether it has a series for each partition, which a key switches off."""
        return "partition" in self.labels


def counter(name: str, text: str, *labels: str, unit: str = "") -> Metric:
    """Declare a counter."""
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=labels, unit=unit)


def gauge(name: str, text: str, *labels: str, unit: str = "") -> Metric:
    """Declare a gauge."""
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=labels, unit=unit)


def histogram(name: str, text: str, *labels: str, unit: str = "seconds") -> Metric:
    """Declare a histogram."""
    return Metric(name=name, kind=Kind.HISTOGRAM, help=text, labels=labels, unit=unit)

"""`lowtide metrics`: prints all metrics of a broker as a Markdown page, which is `docs/metrics.md`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from lowtide.broker.metrics.metric import Metric
from lowtide.broker.metrics.registry import SUBJECTS

_HEAD: Final = """\
# Metrics

All metrics of a broker, as `lowtide metrics` prints them. A broker serves them at `/metrics`, in the text format of
Prometheus or as OpenMetrics (header `Accept`). Names that begin with `kafka_` are those that dashboards and alerts for
Kafka use: from Strimzi's rules for the JMX exporter, from Confluent's for request times, and from kafka_exporter. Names
that begin with `lowtide_` exist only in Lowtide.

**Which broker reports what.** Each broker reports its own work and the logs that it hosts. Values that exist once in a
cluster come from one broker, so a sum over all brokers counts nothing twice: a partition's from its leader, a group's
from its coordinator, those of the cluster and of partitions without a leader from the controller.

**Lag.** `kafka_consumergroup_lag` counts readable records: deleted ones are not part of it, and it is never negative.
For a partition without a committed offset, offset and lag are -1, as in kafka_exporter, and no sum includes them.

**How many series.** Topics, groups, users and clients that do not exist have no series. With
`lowtide.metrics.partitions=false`, single partitions have none (marked *p* below). A broker builds the page at most
once a second, and all clients share it.

Counters begin at 0 when the broker starts. Gauges that alerts use are reported also when they are 0.
"""


def metrics(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    argparse.ArgumentParser(
        prog="lowtide metrics", description="Print all metrics of a broker, as a Markdown page."
    ).parse_args(arguments)
    print(metrics_page(), end="")
    return 0


def metrics_page() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for subject in SUBJECTS:
        parts.append(f"\n## {subject.title}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n")
        parts += [_row(metric) for metric in subject.metrics]
    return "".join(parts)


def _row(metric: Metric) -> str:
    kind = metric.kind.value + (f", {metric.unit}" if metric.unit else "") + (" *p*" if metric.has_partition else "")
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.help} |\n"

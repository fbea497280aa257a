"""`lowtide metrics`: prints all metrics of a broker as a Markdown page, which is `docs/metrics.md`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from lowtide.broker.metrics.metric import Metric
from lowtide.broker.metrics.registry import SUBJECTS

_HEAD: Final = """\
# Metrics

Every metric of a broker, as `lowtide metrics` prints it. A broker serves them at `/metrics`, in Prometheus's text
format or as OpenMetrics, as the client asks (`Accept`). Names that begin with `kafka_` are those that boards and alerts
for Kafka use: of Strimzi's rules for the JMX exporter, of Confluent's for times of requests, and of kafka_exporter.
What only Lowtide has begins with `lowtide_`.

**Which broker has what.** A broker has what it does itself, and the logs that it hosts. What there is once in a cluster
comes from one broker, so a sum over all brokers counts nothing twice: a partition's series from its leader, those of
partitions without a leader and of the cluster from the controller, a group's from its coordinator.

**Lag.** `kafka_consumergroup_lag` counts records that can be read: deleted ones are in no lag, and it is never
negative. A partition for which a group has committed nothing has the offset -1 and the lag -1, as kafka_exporter has
it, and counts in no sum.

**How many series.** A topic, group, user or client that does not exist has none. `lowtide.metrics.partitions=false`
leaves out those of single partitions (marked *p* below). A page is written at most once a second, however many clients
ask; all get the same one.

Counters begin at 0 when the broker starts. Gauges that alerts use are there also when they are 0.
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

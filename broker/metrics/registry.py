"""All metrics. `docs/metrics.md` is generated from them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Final, NamedTuple

from lowtide.broker.metrics import (
    clients,
    cluster,
    commits,
    coordinators,
    groups,
    network,
    partitions,
    process,
    quotas,
    requests,
    share_groups,
    storage,
    topics,
)
from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import Metric
from lowtide.broker.metrics.sources import Scrape


class Subject(NamedTuple):
    """The metrics of one module, which are read together."""

    title: str
    module: ModuleType

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the module declares, in order, including those in its tables."""
        return tuple(dict.fromkeys(_metrics_in(tuple(vars(self.module).values()))))

    def write(self, scrape: Scrape, page: Page) -> Iterator[None]:
        steps: Iterator[None] = self.module.write(scrape, page)
        return steps


def _metrics_in(value: object) -> Iterator[Metric]:
    if isinstance(value, Metric):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _metrics_in(each)
    elif isinstance(value, dict):
        yield from _metrics_in((*value.keys(), *value.values()))


SUBJECTS: Final = (
    Subject("Topics", topics),
    Subject("Partitions and replicas", partitions),
    Subject("The cluster", cluster),
    Subject("Groups", groups),
    Subject("Share groups", share_groups),
    Subject("Deletes, retention and log directories", storage),
    Subject("Syncs, journals and metadata", commits),
    Subject("Requests", requests),
    Subject("Quotas", quotas),
    Subject("Connections and memory", network),
    Subject("Coordinators", coordinators),
    Subject("Metrics of clients", clients),
    Subject("The process and its loop", process),
)

METRICS: Final = {metric.name: metric for subject in SUBJECTS for metric in subject.metrics}

"""All metrics, each declared once in the file of its subject. The page `docs/metrics.md` is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

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

Write: TypeAlias = Callable[[Scrape, Page], Iterator[None]]
"""Writes metrics of one subject, some lines at a time."""


class Subject(NamedTuple):
    """Metrics that are read together."""

    title: str
    metrics: tuple[Metric, ...]
    write: Write


SUBJECTS: Final = (
    Subject("Topics", topics.METRICS, topics.write),
    Subject("Partitions and replicas", partitions.METRICS, partitions.write),
    Subject("The cluster", cluster.METRICS, cluster.write),
    Subject("Groups", groups.METRICS, groups.write),
    Subject("Share groups", share_groups.METRICS, share_groups.write),
    Subject("Deletes, retention and log directories", storage.METRICS, storage.write),
    Subject("Syncs, journals and metadata", commits.METRICS, commits.write),
    Subject("Requests", requests.METRICS, requests.write),
    Subject("Quotas", quotas.METRICS, quotas.write),
    Subject("Connections and memory", network.METRICS, network.write),
    Subject("Coordinators", coordinators.METRICS, coordinators.write),
    Subject("Metrics of clients", clients.METRICS, clients.write),
    Subject("The process and its loop", process.METRICS, process.write),
)
"""In the order of the page."""

METRICS: Final = {metric.name: metric for subject in SUBJECTS for metric in subject.metrics}

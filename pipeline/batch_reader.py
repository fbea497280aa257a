"""`spark.read.format("lowtide")`: the records of topics between two sets of offsets, as a data frame."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.planning import Planner
from lowtide.pipeline.read_options import ReadOptions
from lowtide.pipeline.tasks import FetchSettings, PlannedRange

if TYPE_CHECKING:
    import pyarrow as pa

_CLUSTERS: Final[dict[ClientSettings, BlockingCluster]] = {}
"""The connections of this process. Spark reuses its workers, so later tasks use them again."""

_CLUSTERS_MAX: Final = 4
"""Clusters that one worker keeps connections to."""


def shared_cluster(settings: ClientSettings) -> BlockingCluster:
    """Returns this process's connections to a cluster. The first call opens them."""
    cluster = _CLUSTERS.pop(settings, None) or BlockingCluster(settings)
    while len(_CLUSTERS) >= _CLUSTERS_MAX:
        _CLUSTERS.pop(next(iter(_CLUSTERS))).close()
    _CLUSTERS[settings] = cluster
    return cluster


@functools.cache
def exempt_imports_from_collection() -> None:
    """Excludes the imported modules from garbage collection, once, because Spark's workers collect after each task."""
    gc.freeze()


class RangePartition(InputPartition):  # type: ignore[misc]
    """The range that one task reads."""

    def __init__(self, planned: PlannedRange) -> None:
        self.planned = planned


def read_range(client: ClientSettings, fetch: FetchSettings, partition: Any) -> Iterator[pa.RecordBatch]:
    """Yields the records of one task's range. Spark calls it for an empty batch with a partition without a range.

    Errors: DataLossError, ClusterError, DamagedBatchError.
    """
    if not isinstance(partition, RangePartition):
        return
    from lowtide.pipeline.arrow_batches import BatchMaker  # noqa: PLC0415 - the driver does not read
    from lowtide.pipeline.fetching import RangeReader  # noqa: PLC0415 as above

    exempt_imports_from_collection()
    maker = BatchMaker(partition.planned.offsets.partition, include_headers=fetch.include_headers)
    for columns in RangeReader(shared_cluster(client), fetch, partition.planned).columns():
        yield maker.batch(columns)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver and reads on the executors. Spark pickles it first, so it has options only."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        planner = Planner(shared_cluster(self._options.client), self._options)
        selected = planner.select()
        start = planner.resolve(self._options.starting, selected.partitions, "starting")
        until = planner.resolve(self._options.ending, selected.partitions, "ending")
        return [RangePartition(planned) for planned in planner.plan(start, until, selected.topic_ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options.client, self._options.fetch, partition)

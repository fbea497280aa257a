"""Searches the logs of partitions for records, one log after the other, in a worker process.

Guards: a bounded number of searches and of records that they have found. A search whose log or leader epoch changes has
no result. Nothing is logged or counted by selector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.replication.partition import Partition
from lowtide.runtime.heavy_work import NO_RATE_LIMIT, HeavyWorker
from lowtide.runtime.random import Random
from lowtide.storage.erasures.log_search import LogSearch, SearchedLog, SearchFailure, SearchPorts, SearchTerms
from lowtide.storage.erasures.record_search import RecordSelector
from lowtide.storage.log.log import Log

SEARCHES_MAX: Final = 256
"""Searches that are under way or whose results are kept."""

KEPT_RECORDS_MAX: Final = 2_000_000
"""Records that all kept results have together: 20 bytes each. Above that no search begins."""

SECRET_BYTES: Final = 32


class PartitionSearch:
    """The search of one partition."""

    def __init__(self, partition: Partition, terms: SearchTerms, ports: SearchPorts, log: Any) -> None:
        self.log = partition.log
        self.leader_epoch = partition.leader_epoch
        self.outcome: SearchedLog | SearchFailure | None = None
        """None while it is under way."""
        self.done = asyncio.Event()
        self.search = LogSearch(self.log, terms, ports, self._on_done)
        self.partition = partition
        self._broker_log = log

    @property
    def searched_bytes(self) -> int:
        return self.search.searched_bytes

    @property
    def total_bytes(self) -> int:
        return self.search.total_bytes

    @property
    def found_count(self) -> int:
        return len(self.outcome.records) if isinstance(self.outcome, SearchedLog) else 0

    def is_current(self) -> bool:
        """Returns whether the partition has the same log and leader epoch as at the beginning."""
        return self.partition.log is self.log and self.partition.leader_epoch == self.leader_epoch

    def end(self) -> None:
        """Ends the search without a result, unless it is done."""
        self._on_done(SearchFailure.CANCELLED, None)

    def _on_done(self, outcome: SearchedLog | SearchFailure, detail: str | None) -> None:
        if self.outcome is not None:
            return
        changed = isinstance(outcome, SearchedLog) and not self.is_current()
        self.outcome = SearchFailure.MOVED if changed else outcome
        if outcome is SearchFailure.UNREADABLE:
            self._broker_log.warning("log cannot be searched", partition=str(self.log.topic_partition), reason=detail)
        self.done.set()


class LogSearches:
    """All searches of a broker. `stop` ends them."""

    def __init__(
        self,
        replicas: ReplicaManager,
        configs: BrokerConfigs,
        random: Random,
        log: Any,
        make_worker: Callable[[int], HeavyWorker] | None,
    ) -> None:
        """`make_worker` takes the number of processes; None disables searches."""
        self._logs = replicas.log_manager.logs
        self._configs = configs
        self._random = random
        self._log = log
        self._make_worker = make_worker
        self._worker: HeavyWorker | None = None
        self._searches: dict[PartitionSearch, None] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        """Returns the number of searches that aren't forgotten."""
        return len(self._searches)

    async def search(
        self,
        partition: Partition,
        selector: RecordSelector,
        end_offset: Offset,
        *,
        first_offset: Offset = UNKNOWN_OFFSET,
        with_keys: bool = False,
    ) -> SearchedLog | SearchFailure:
        """Searches a partition's log from `first_offset`, or all of it, to `end_offset` (exclusive, at most its end).

        Cancelling the task ends the search.
        """
        begun = self.begin(partition, selector, end_offset, first_offset=first_offset, with_keys=with_keys)
        if isinstance(begun, SearchFailure):
            return begun
        try:
            await begun.done.wait()
        finally:
            self.forget(begun)
        assert begun.outcome is not None
        return begun.outcome

    def begin(
        self,
        partition: Partition,
        selector: RecordSelector,
        end_offset: Offset,
        *,
        first_offset: Offset = UNKNOWN_OFFSET,
        with_keys: bool = False,
    ) -> PartitionSearch | SearchFailure:
        """Begins a search, behind earlier ones. The caller calls `forget` in the end.

        With `with_keys` the result has the keys of the records.
        Returns BUSY if there are too many, CANCELLED if the broker stops.
        """
        if self._is_stopped or self._make_worker is None:
            return SearchFailure.CANCELLED
        kept = sum(each.found_count for each in self._searches)
        if len(self._searches) >= SEARCHES_MAX or kept > KEPT_RECORDS_MAX:
            return SearchFailure.BUSY
        if self._worker is None:
            self._worker = self._make_worker(1)
        rate = self._configs.current.values["lowtide.erasure.io.max.bytes.per.second"]
        assert isinstance(rate, int | float), rate
        terms = SearchTerms(
            selector=selector,
            end_offset=end_offset,
            first_offset=first_offset,
            uses_filters=partition.log.config.lowtide_erasure_key_filter == "search",
            bytes_per_second=rate if rate > 0 else NO_RATE_LIMIT,
            secret=self._random.randbytes(SECRET_BYTES),
            with_keys=with_keys,
        )
        ports = SearchPorts(partition.log.files.filesystem, self._worker, self._is_here)
        begun = PartitionSearch(partition, terms, ports, self._log)
        self._searches[begun] = None
        begun.search.begin()
        return begun

    def forget(self, begun: PartitionSearch) -> None:
        """Forgets a search and its result. Ends it if it is under way."""
        self._searches.pop(begun, None)
        if begun.outcome is None:
            begun.search.cancel()

    def stop(self) -> None:
        """Ends all searches: their outcome is CANCELLED. The worker's process has ended when this returns."""
        self._is_stopped = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        for begun in list(self._searches):
            begun.end()
        self._searches.clear()

    def _is_here(self, log: Log) -> bool:
        return self._logs.get(log.topic_partition) is log

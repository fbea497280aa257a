"""Metrics of coordinators: groups, offsets, members and transactions, against their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape
from lowtide.protocol.errors import ErrorCode

_ROWS_A_STEP: Final = 1_000

_GROUPS: Final = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroups", "The number of groups that this broker coordinates."
)
_OFFSETS: Final = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numoffsets", "The number of committed offsets on this coordinator."
)
_OFFSET_COUNT: Final = gauge(
    "kafka_server_group_coordinator_metrics_offset_count", "The same number, by the name of Kafka 4.4."
)
_METADATA: Final = gauge(
    "lowtide_offsets_metadata_characters", "The characters of their metadata (`lowtide.offsets.metadata.bytes.max`)."
)
_REFUSED: Final = counter(
    "lowtide_groups_refused_total", "The number of groups, offsets and members that were rejected because of a limit."
)
_TRANSACTIONS: Final = gauge(
    "lowtide_transactions", "The number of transactional ids that this broker coordinates, by state.", "state"
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    groups = scrape.sources.groups.held()
    page.one(_GROUPS, groups.groups)
    page.one(_OFFSETS, groups.offsets)
    page.one(_OFFSET_COUNT, groups.offsets)
    page.one(_METADATA, groups.metadata_characters)
    page.one(_REFUSED, groups.refused)
    states = Counter({state.name.lower(): 0 for state in TransactionState if state.name != "DEAD"})
    shards = scrape.sources.transactions.loaded()
    for shard in [] if isinstance(shards, ErrorCode) else shards:
        for count, transaction in enumerate(list(shard.state.transactions.values()), 1):
            states[transaction.state.name.lower()] += 1
            if count % _ROWS_A_STEP == 0:
                yield
        yield
    page.rows(_TRANSACTIONS, [((state,), count) for state, count in sorted(states.items())])
    yield

"""Share groups (KIP-932), at the leaders of their partitions: sessions, records that members have, and what they said of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape
from lowtide.broker.partitions.share.share_values import AcknowledgeType

_STEP: Final = 1_000

_SESSIONS: Final = gauge(
    "kafka_server_sharesessioncache_sharesessionscount", "Share sessions (`group.share.max.share.sessions`)."
)
_IN_SESSIONS: Final = gauge(
    "kafka_server_sharesessioncache_sharepartitionscount", "Partitions of all share sessions together."
)
_LOADED: Final = gauge(
    "lowtide_share_partitions", "Partitions led here whose state for a share group is in memory, each once for a group."
)
_IN_FLIGHT: Final = gauge(
    "kafka_server_sharepartitionmetrics_inflightmessagecount",
    "Offsets from the start of each of them to the last one that was acquired.",
)
_ACQUIRED: Final = counter(
    "lowtide_share_records_acquired_total", "Offsets that members have acquired, once for each delivery."
)
_ACKNOWLEDGED: Final = counter(
    "kafka_server_sharegroupmetrics_recordacknowledgements_total",
    "Offsets that members have acknowledged, by what they said.",
    "ack_type",
)
_TIMED_OUT: Final = counter(
    "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total",
    "Offsets that were acquired for too long (`share.record.lock.duration.ms`).",
)

METRICS: Final = (_SESSIONS, _IN_SESSIONS, _LOADED, _IN_FLIGHT, _ACQUIRED, _ACKNOWLEDGED, _TIMED_OUT)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them, some share partitions at a time. Nothing where share groups aren't served."""
    shares = scrape.sources.shares
    if shares is None:
        return
    in_flight, loaded = 0, shares.loaded()
    for count, share in enumerate(loaded, 1):
        in_flight += 0 if share.state is None else share.state.end_offset - share.state.start_offset
        if count % _STEP == 0:
            yield
    page.one(_SESSIONS, len(shares.sessions))
    page.one(_IN_SESSIONS, shares.sessions.partition_count)
    page.one(_LOADED, len(loaded))
    page.one(_IN_FLIGHT, in_flight)
    page.one(_ACQUIRED, shares.counts.acquired)
    page.rows(_ACKNOWLEDGED, [((kind.name.lower(),), shares.counts.acknowledged[kind]) for kind in AcknowledgeType])
    page.one(_TIMED_OUT, shares.counts.timed_out)
    yield

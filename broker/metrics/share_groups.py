"""Metrics of share groups (KIP-932), from the leaders of partitions: sessions, acquired and acknowledged records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape
from lowtide.broker.partitions.share.share_values import AcknowledgeType

_STEP: Final = 1_000

_SESSIONS: Final = gauge(
    "kafka_server_sharesessioncache_sharesessionscount",
    "The number of share sessions (`group.share.max.share.sessions`).",
)
_IN_SESSIONS: Final = gauge(
    "kafka_server_sharesessioncache_sharepartitionscount", "The number of partitions in share sessions."
)
_LOADED: Final = gauge("lowtide_share_partitions", "The number of share partitions that are loaded on this leader.")
_IN_FLIGHT: Final = gauge(
    "kafka_server_sharepartitionmetrics_inflightmessagecount",
    "The number of offsets from the start to the last acquired one, over all share partitions.",
)
_ACQUIRED: Final = counter(
    "lowtide_share_records_acquired_total", "The number of acquired offsets, counting each delivery."
)
_ACKNOWLEDGED: Final = counter(
    "kafka_server_sharegroupmetrics_recordacknowledgements_total",
    "The number of acknowledged offsets, by type.",
    "ack_type",
)
_TIMED_OUT: Final = counter(
    "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total",
    "The number of offsets whose acquisition lock expired (`share.record.lock.duration.ms`).",
)
_LETTERS: Final = counter(
    "kafka_server_sharegroupmetrics_deadletterqueuerecordcount_total",
    "The number of dead letters that were written (KIP-1191).",
    "group",
)
_LETTER_REQUESTS: Final = counter(
    "kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequests_total",
    "The number of batches of dead letters that this broker tried to write.",
    "group",
)
_FAILED_LETTER_REQUESTS: Final = counter(
    "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total",
    "The number of batches of dead letters that could not be written; those that may succeed later are tried again.",
    "group",
)
_NO_LETTERS: Final = counter(
    "lowtide_share_records_without_dead_letter_total",
    "The number of given-up records without a dead letter: `error` because it could not be written, `deleted` because "
    "the record was deleted before.",
    "group",
    "reason",
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes nothing if share groups are disabled."""
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
    letters = list(shares.counts.letters.items())
    page.rows(_LETTERS, [((group,), count.written) for group, count in letters])
    page.rows(_LETTER_REQUESTS, [((group,), count.requests) for group, count in letters])
    page.rows(_FAILED_LETTER_REQUESTS, [((group,), count.failed_requests) for group, count in letters])
    page.rows(
        _NO_LETTERS,
        [
            ((group, reason), value)
            for group, count in letters
            for reason, value in (("error", count.unwritten), ("deleted", count.deleted))
        ],
    )
    yield

"""What users and clients use of their quotas, and how long they wait: Kafka's `Produce`, `Fetch` and `Request` by user and client id.

Only who has a quota, and used it within its window, has series: of the most recent `SERIES_MAX` for each kind of quota, or a client that
invents client ids would fill the page. A label is empty where the quota is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import gauge
from lowtide.broker.metrics.sources import Scrape
from lowtide.broker.quotas.quota_entity import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

SERIES_MAX: Final = 500
"""Of each metric."""

NAME_LENGTH_MAX: Final = 256
"""Users and clients of longer names are left out."""

_LABELS: Final = ("user", "client_id")
_WAIT: Final = "Time that clients above this quota are asked to wait: the mean of the quota's window."
_BY_QUOTA: Final = {
    PRODUCER_BYTE_RATE: (
        gauge("kafka_server_produce_byte_rate", "Bytes a second of Produce, under a quota.", *_LABELS, unit="bytes"),
        gauge("kafka_server_produce_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
    CONSUMER_BYTE_RATE: (
        gauge("kafka_server_fetch_byte_rate", "Bytes a second of Fetch, under a quota.", *_LABELS, unit="bytes"),
        gauge("kafka_server_fetch_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
    REQUEST_PERCENTAGE: (
        gauge(
            "kafka_server_request_request_time",
            "Time of the loop that requests under a quota take.",
            *_LABELS,
            unit="percent",
        ),
        gauge("kafka_server_request_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
}

METRICS: Final = tuple(metric for both in _BY_QUOTA.values() for metric in both)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them, a quota at a time."""
    now_ms = scrape.sources.broker.clock.monotonic_ms()
    for key, (rate, wait) in _BY_QUOTA.items():
        used = [
            each
            for each in scrape.sources.quotas.used(key, now_ms, SERIES_MAX)
            if len(each.user + each.client_id) <= NAME_LENGTH_MAX
        ]
        yield
        page.rows(rate, [((each.user, each.client_id), each.per_second) for each in used])
        page.rows(wait, [((each.user, each.client_id), each.wait_ms) for each in used])
        yield

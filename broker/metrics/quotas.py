"""Metrics of quotas: rates and throttle times of users and clients, as Kafka's `Produce`, `Fetch` and `Request`.

Only users and clients that used their quota within its window have series: the most recent `SERIES_MAX` per quota, so
that invented client ids cannot fill the page. An empty label means that the quota is shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import gauge
from lowtide.broker.metrics.sources import Scrape
from lowtide.broker.quotas.quota_entity import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

SERIES_MAX: Final = 500

NAME_LENGTH_MAX: Final = 256
"""The maximum length of user and client id in a series."""

_LABELS: Final = ("user", "client_id")
_WAIT: Final = "The mean throttle time over the quota's window."
_BY_QUOTA: Final = {
    PRODUCER_BYTE_RATE: (
        gauge(
            "kafka_server_produce_byte_rate",
            "The produce rate under a quota, in bytes per second.",
            *_LABELS,
            unit="bytes",
        ),
        gauge("kafka_server_produce_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
    CONSUMER_BYTE_RATE: (
        gauge(
            "kafka_server_fetch_byte_rate", "The fetch rate under a quota, in bytes per second.", *_LABELS, unit="bytes"
        ),
        gauge("kafka_server_fetch_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
    REQUEST_PERCENTAGE: (
        gauge(
            "kafka_server_request_request_time",
            "The part of the event loop's time that requests under a quota use.",
            *_LABELS,
            unit="percent",
        ),
        gauge("kafka_server_request_throttle_time", _WAIT, *_LABELS, unit="ms"),
    ),
}


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
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

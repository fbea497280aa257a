"""Metrics of traffic: Kafka's `BrokerTopicMetrics` under Strimzi's names, by topic and in total.

The total has no label `topic`. Replication is counted in total only, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import counter
from lowtide.broker.metrics.sources import Scrape
from lowtide.replication.topic_traffic import Traffic

_PREFIX: Final = "kafka_server_brokertopicmetrics_"

_BY_TOPIC: Final = {
    "messages_in": counter(f"{_PREFIX}messagesin_total", "The number of records appended as leader.", "topic"),
    "bytes_in": counter(f"{_PREFIX}bytesin_total", "The bytes of batches appended as leader.", "topic", unit="bytes"),
    "bytes_out": counter(f"{_PREFIX}bytesout_total", "The bytes of batches sent to consumers.", "topic", unit="bytes"),
    "produce_requests": counter(
        f"{_PREFIX}totalproducerequests_total", "The number of partitions in Produce requests.", "topic"
    ),
    "fetch_requests": counter(
        f"{_PREFIX}totalfetchrequests_total",
        "The number of partitions read for Fetch requests, also of followers, and again after a wait.",
        "topic",
    ),
    "failed_produce_requests": counter(
        f"{_PREFIX}failedproducerequests_total",
        "The number of rejected partitions in Produce requests, except for a wrong broker, size, checksum or failed "
        "disk.",
        "topic",
    ),
    "failed_fetch_requests": counter(
        f"{_PREFIX}failedfetchrequests_total",
        "The number of partitions in Fetch requests that could not be read.",
        "topic",
    ),
}

_FOR_ALL: Final = {
    "replication_bytes_in": counter(
        f"{_PREFIX}replicationbytesin_total", "The bytes of batches appended as follower.", unit="bytes"
    ),
    "replication_bytes_out": counter(
        f"{_PREFIX}replicationbytesout_total", "The bytes of batches sent to followers.", unit="bytes"
    ),
}


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    traffic = scrape.sources.broker.replicas.traffic
    topics = []
    total = Traffic()
    total.add(traffic.unnamed)
    for found in traffic.by_topic():
        if found is not None:
            topic, each = found
            topics.append((f'{{topic="{escaped(topic)}"}}', each))
            total.add(each)
        yield
    for field, metric in _BY_TOPIC.items():
        name = page.begin(metric)
        page.write([f"{name} {getattr(total, field)}\n"])
        yield from page.series(metric, (f"{labels} {getattr(each, field)}" for labels, each in topics), begins=False)
    for field, metric in _FOR_ALL.items():
        page.one(metric, getattr(total, field))
    yield

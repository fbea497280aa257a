"""What goes in and out of topics: Kafka's `BrokerTopicMetrics`, under the names of Strimzi's rules, by topic and once for all.

The sum over all has no label `topic`. Replication is counted in the sum alone, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import counter
from lowtide.broker.metrics.sources import Scrape
from lowtide.replication.topic_traffic import Traffic

_PREFIX: Final = "kafka_server_brokertopicmetrics_"
_ROWS_A_STEP: Final = 500

_BY_TOPIC: Final = {
    "messages_in": counter(f"{_PREFIX}messagesin_total", "Records appended as leader.", "topic"),
    "bytes_in": counter(f"{_PREFIX}bytesin_total", "Bytes of the batches of these records.", "topic", unit="bytes"),
    "bytes_out": counter(f"{_PREFIX}bytesout_total", "Bytes of batches sent to consumers.", "topic", unit="bytes"),
    "produce_requests": counter(f"{_PREFIX}totalproducerequests_total", "Partitions in Produce requests.", "topic"),
    "fetch_requests": counter(
        f"{_PREFIX}totalfetchrequests_total",
        "Partitions read for Fetch requests, again at the end of a wait; those of followers too.",
        "topic",
    ),
    "failed_produce_requests": counter(
        f"{_PREFIX}failedproducerequests_total",
        "Those of Produce requests that were refused, but for a wrong broker, a size, a checksum or a failed disk.",
        "topic",
    ),
    "failed_fetch_requests": counter(
        f"{_PREFIX}failedfetchrequests_total", "Those of Fetch requests whose log could not be read.", "topic"
    ),
}
"""By the fields of `Traffic`."""

_FOR_ALL: Final = {
    "replication_bytes_in": counter(
        f"{_PREFIX}replicationbytesin_total", "Bytes of batches appended as follower.", unit="bytes"
    ),
    "replication_bytes_out": counter(
        f"{_PREFIX}replicationbytesout_total", "Bytes of batches sent to followers.", unit="bytes"
    ),
}

METRICS: Final = (*_BY_TOPIC.values(), *_FOR_ALL.values())


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them, some lines at a time."""
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
        for start in range(0, len(topics), _ROWS_A_STEP):
            page.write(
                [f"{name}{labels} {getattr(each, field)}\n" for labels, each in topics[start : start + _ROWS_A_STEP]]
            )
            yield
    for field, metric in _FOR_ALL.items():
        page.one(metric, getattr(total, field))
    yield

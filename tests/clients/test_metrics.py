"""A real broker's `/metrics`, read by a real HTTP client while clients produce, consume and delete."""

from __future__ import annotations

import asyncio
import gzip

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lowtide.broker.config.broker_config import Setting
from lowtide.broker.config.http_listeners import HTTP_LISTENERS, TRUST_LOCAL
from tests.http_visitor import Visitor

from .test_http import Lines, broker_of

TOPIC = "measured"
HTTP = {HTTP_LISTENERS: Setting("http://127.0.0.1:0", "test"), TRUST_LOCAL: Setting("true", "test")}
RECORDS, DELETED, COMMITTED = 100, 60, 40


def use(address: str) -> None:
    """Produces, commits, and deletes above what is committed."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(10)
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, COMMITTED)], asynchronous=False)
    consumer.close()
    admin.delete_records([TopicPartition(TOPIC, 0, DELETED)])[TopicPartition(TOPIC, 0)].result(10)


def samples(text: str, *, is_open: bool) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in (parse_open_metrics if is_open else parse_text)(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def test_a_scrape_shows_what_clients_have_done(tmp_path):
    async with broker_of(tmp_path, Lines(), **HTTP) as broker:
        await asyncio.to_thread(use, broker.address)
        (url,) = broker.http_addresses
        async with Visitor(url) as visitor:
            plain = await visitor.ask("/metrics")
            assert plain.status == 200
            assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
            open_metrics = "application/openmetrics-text;version=1.0.0"
            packed = await visitor.ask("/metrics", Accept=open_metrics, Accept_Encoding="gzip")
            assert packed.headers["content-encoding"] == "gzip"
            assert packed.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    pages = [samples(plain.body.decode(), is_open=False), samples(gzip.decompress(packed.body).decode(), is_open=True)]
    topic, partition = frozenset({("topic", TOPIC)}), frozenset({("topic", TOPIC), ("partition", "0")})
    group = partition | {("consumergroup", "readers")}
    for page in pages:
        assert page["kafka_server_brokertopicmetrics_messagesin_total"][topic] == RECORDS
        assert page["kafka_topic_partition_current_offset"][partition] == RECORDS
        assert page["kafka_topic_partition_oldest_offset"][partition] == DELETED
        assert page["kafka_consumergroup_current_offset"][group] == COMMITTED
        assert page["kafka_consumergroup_lag"][group] == RECORDS - DELETED


async def test_many_clients_that_ask_at_once_get_one_page(tmp_path):
    """It is written once a second: a broker isn't kept busy by asking."""
    async with broker_of(tmp_path, Lines(), **HTTP) as broker:
        assert broker.serving is not None
        collector = broker.serving.metrics
        pages = await asyncio.gather(*(collector.page() for _ in range(100)))
        assert len({id(page) for page in pages}) == 1

"""Tests of your own code against a real broker in the test's process, with Lowtide's pytest fixtures.

pytest examples/test_with_lowtide.py
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic


def test_delivery(lowtide, lowtide_topic):
    """`lowtide` is one broker for the session; `lowtide_topic` is a name that no other test has."""
    producer = Producer({"bootstrap.servers": lowtide.bootstrap})
    producer.produce(lowtide_topic, b"hello")
    assert producer.flush(10) == 0

    consumer = Consumer(
        {"bootstrap.servers": lowtide.bootstrap, "group.id": lowtide_topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([lowtide_topic])
    message = consumer.poll(30)
    assert message.value() == b"hello"
    consumer.close()


def test_a_broker_stops(lowtide_cluster, lowtide_topic):
    """`lowtide_cluster` is three brokers: stop one, check the behaviour of your code, and start it again."""
    admin = AdminClient({"bootstrap.servers": lowtide_cluster.bootstrap})
    topic = NewTopic(lowtide_topic, 1, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[lowtide_topic].result(30)
    leader = admin.list_topics(lowtide_topic, 10).topics[lowtide_topic].partitions[0].leader

    producer = Producer({"bootstrap.servers": lowtide_cluster.bootstrap, "enable.idempotence": True})
    producer.produce(lowtide_topic, b"before")
    assert producer.flush(30) == 0
    lowtide_cluster.stop_broker(leader)
    try:
        producer.produce(lowtide_topic, b"after")
        assert producer.flush(60) == 0
    finally:
        lowtide_cluster.start_broker(leader)

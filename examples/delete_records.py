"""Delete the beginning of a partition with Kafka's own admin API (DeleteRecords, KIP-107), with confluent-kafka.

    python examples/delete_records.py [HOST:PORT]

The delete is on disk when the call returns. A read below the new start is answered with OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from some_broker import some_broker


def run(address: str) -> None:
    topic = f"tides-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": address})
    for number in range(10):
        producer.produce(topic, value=f"tide {number}")
    assert producer.flush(30) == 0

    # The offset is the first one that stays. -1 (OFFSET_END) deletes all committed records.
    admin = AdminClient({"bootstrap.servers": address})
    for partition, deleted in admin.delete_records([TopicPartition(topic, 0, 7)]).items():
        print(f"partition {partition.partition} now starts at {deleted.result(30).low_watermark}")

    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for message in consumer.consume(3, timeout=30):
        print(message.offset(), message.value().decode())
    consumer.close()


def main() -> None:
    with some_broker() as address:
        run(address)


if __name__ == "__main__":
    main()

"""Abort one transaction and commit another: a consumer of committed records receives only the second.

python examples/transactions.py [HOST:PORT]
"""

from __future__ import annotations

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from some_broker import some_broker


def run(address: str) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(30)

    producer.begin_transaction()
    producer.produce(topic, value="never paid", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)

    producer.begin_transaction()
    producer.produce(topic, value="paid", partition=0)
    producer.produce(topic, value="shipped", partition=0)
    producer.commit_transaction(30)

    for level in ("read_uncommitted", "read_committed"):
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False, "isolation.level": level}
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(3 if level == "read_uncommitted" else 2, timeout=30)
        print(level, [message.value().decode() for message in messages])
        consumer.close()


def main() -> None:
    with some_broker() as address:
        run(address)


if __name__ == "__main__":
    main()

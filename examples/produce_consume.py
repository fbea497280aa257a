"""Write ten records and read them back, with confluent-kafka.

python examples/produce_consume.py [HOST:PORT]
"""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer
from some_broker import some_broker


def run(address: str) -> None:
    topic = f"greetings-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(10):
        producer.produce(topic, key=str(number), value=f"hello {number}")
    assert producer.flush(30) == 0, "some records were not acknowledged"

    # A group's first consumer starts at the beginning, and commits its position.
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received = 0
    while received < 10:
        message = consumer.poll(30)
        assert message is not None, "no record within 30 s"
        assert message.error() is None, message.error()
        print(message.offset(), message.value().decode())
        received += 1
    consumer.close()


def main() -> None:
    with some_broker() as address:
        run(address)


if __name__ == "__main__":
    main()

"""Write ten records and read them back, with kafka-python.

python examples/produce_consume_kafka_python.py [HOST:PORT]
"""

from __future__ import annotations

import uuid

from kafka import KafkaConsumer, KafkaProducer
from some_broker import some_broker


def run(address: str) -> None:
    topic = f"greetings-{uuid.uuid4().hex[:8]}"
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(10):
        producer.send(topic, key=b"%d" % number, value=b"hello %d" % number)
    producer.flush(30)
    producer.close()

    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    for message in consumer:
        print(message.offset, message.value.decode())
        if message.offset == 9:
            break
    consumer.close()


def main() -> None:
    with some_broker() as address:
        run(address)


if __name__ == "__main__":
    main()

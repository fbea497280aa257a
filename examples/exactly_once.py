"""Consume, transform, produce: results and offsets are committed in one transaction, so each record counts once.

    python examples/exactly_once.py [HOST:PORT]

The program crashes once in the middle of a transaction, to show that no record is lost or duplicated.
"""

from __future__ import annotations

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from some_broker import some_broker

RECORDS = 20


class Crash(Exception):
    """Stands for a crash of the process."""


def double_all(address: str, source: str, target: str, *, crash_after: int | None) -> None:
    """Write each number of `source`, doubled, to `target`, until all are done.

    A crash comes before the commit of a transaction.
    """
    settings = {
        "group.id": source,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({"bootstrap.servers": address, **settings})
    # The same transactional id fences the crashed producer, and aborts its transaction.
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{source}-doubler"})
    try:
        consumer.subscribe([source])
        producer.init_transactions(30)
        done = 0
        while True:
            messages = consumer.consume(5, timeout=10)
            if not messages:
                return
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, value=str(2 * int(message.value())), partition=0)
            done += len(messages)
            if crash_after is not None and done > crash_after:
                producer.flush(30)
                raise Crash
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
            if positions[0].offset >= RECORDS:
                return
    finally:
        consumer.close()


def run(address: str) -> None:
    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("numbers", "doubled"))
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(source, 1), NewTopic(target, 1)]).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce(source, value=str(number))
    assert producer.flush(30) == 0

    try:
        double_all(address, source, target, crash_after=RECORDS // 2)
    except Crash:
        print("crashed in a transaction")
    double_all(address, source, target, crash_after=None)

    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    reader.assign([TopicPartition(target, 0, OFFSET_BEGINNING)])
    doubled: list[int] = []
    while len(doubled) < RECORDS:
        messages = reader.consume(RECORDS - len(doubled), timeout=10)
        assert messages, f"only {doubled}"
        doubled += [int(message.value()) for message in messages]
    reader.close()
    assert doubled == [2 * number for number in range(RECORDS)], doubled
    print(f"{len(doubled)} results, each exactly once")


def main() -> None:
    with some_broker() as address:
        run(address)


if __name__ == "__main__":
    main()

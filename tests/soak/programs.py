"""The clients of a soak, each a process with librdkafka: writers at a steady rate, members of a group, transactions.

Each reports final failures (`client_processes.tell`), but no retries of the library. SIGTERM ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka

from tests.chaos.client_processes import asked_to_end, tell

RETAINED, COMPACTED, MOVED, TABLED, QUEUED = "retained", "compacted", "moved", "tabled", "queued"
GROUP = "readers"
KEYS = 1000
VALUE = b"v" * 1000
RECORDS_A_SECOND = {RETAINED: 30, COMPACTED: 30, TABLED: 10, QUEUED: 10}
TRANSACTIONS_A_SECOND = 2
RECORDS_A_TRANSACTION = 3
COMMIT_EACH_S = 1.0
REPORT_EACH_S = 10.0
FLUSH_S = 60.0

Settings = dict[str, Any]


class Ending:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.event = asked_to_end()

    def ticks(self, a_second: float) -> Any:
        """Numbers at a steady rate, until the end; what a slow moment missed is caught up with."""
        begun, number = time.monotonic(), 0
        while not self.event.wait(max(begun + number / a_second - time.monotonic(), 0.0)):
            yield number
            number += 1


def write(settings: Settings, topic: str, ending: Ending) -> None:
    """Keeps a topic filled; writes each key repeatedly."""
    failed = 0

    def on_delivery(error: Any, _: object) -> None:
        nonlocal failed
        if error is not None:
            failed += 1
            tell({"failed": f"{topic}: {error}"})

    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True, "linger.ms": 20, "acks": "all"})
    for number in ending.ticks(RECORDS_A_SECOND[topic]):
        value = VALUE if topic in (RETAINED, COMPACTED) else b'{"number": %d, "text": "%s"}' % (number, VALUE[:100])
        producer.produce(topic, value, key=b"%d" % (number % KEYS), on_delivery=on_delivery)
        producer.poll(0)
    tell({"left": producer.flush(FLUSH_S), "failed records": failed})


def read(settings: Settings, topic: str, ending: Ending) -> None:
    """A member of the group; commits what it read each second."""
    consumer = confluent_kafka.Consumer(
        {
            **settings,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    records, committed_s, told_s = 0, time.monotonic(), time.monotonic()
    while not ending.event.is_set():
        records += sum(message.error() is None for message in consumer.consume(500, 0.2))
        now_s = time.monotonic()
        if now_s - committed_s > COMMIT_EACH_S:
            committed_s = now_s
            consumer.commit(asynchronous=True)
        if now_s - told_s > REPORT_EACH_S:
            told_s = now_s
            tell({"read": records})
    consumer.close()
    tell({"read": records})


def move(settings: Settings, topic: str, ending: Ending) -> None:
    """Transactions of a few records; every fifth is aborted. A producer that is fenced or broken is opened again."""
    done = 0
    producer = None
    for number in ending.ticks(TRANSACTIONS_A_SECOND):
        try:
            if producer is None:
                producer = confluent_kafka.Producer(
                    {**settings, "transactional.id": "soak", "transaction.timeout.ms": 30_000}
                )
                producer.init_transactions(FLUSH_S)
            producer.begin_transaction()
            for each in range(RECORDS_A_TRANSACTION):
                producer.produce(topic, b"%d-%d" % (number, each))
            if number % 5 == 0:
                producer.abort_transaction(FLUSH_S)
            else:
                producer.commit_transaction(FLUSH_S)
                done += 1
        except confluent_kafka.KafkaException as error:
            tell({"again": str(error)})
            producer = None
        if number % (TRANSACTIONS_A_SECOND * 10) == 0:
            tell({"committed": done})
    tell({"committed": done})


PROGRAMS: dict[str, Callable[[Settings, str, Ending], None]] = {"write": write, "read": read, "move": move}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    client = {**given["settings"], "broker.address.family": "v4", "reconnect.backoff.max.ms": 500}
    PROGRAMS[given["program"]](client, given["topic"].partition(" ")[0], Ending())

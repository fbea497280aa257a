"""The clients of a bank, each a separate program (`client_processes.py`), all of them librdkafka's.

`orders` writes orders to move money, a few a transaction, and aborts every fifth. `mover` is a member of the group that
reads orders and writes their debits and credits; its read offsets are part of the same transaction. `auditor` reads all
committed records. A program that cannot continue exits, and the test starts it again.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from .client_processes import tell

ORDERS, ENTRIES = "orders", "entries"
PARTITIONS = 3
ACCOUNTS = 10
ORDERS_AT_ONCE = 5
ABORTED_EACH = 5
GROUP = "movers"
CALL_S = 5.0
POLL_S = 0.1
SESSION_MS = 3_000
TRANSACTION_MS = 20_000
STUCK_S = 15
"""The limit of `send_offsets_to_transaction`, whose own timeout is 5 seconds.

librdkafka 2.16 can wait in it forever without a request, after the group's coordinator was missing from the metadata
(issues 5456 and 5511). The program then exits and is restarted.
"""


class Ending:
    """Set when the program was asked to end (SIGTERM)."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        self.asked = True


def persist(call: Callable[[], Any]) -> Any:
    """Repeats a call after retriable errors. Errors: KafkaException for others."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 500,
        }
    )
    persist(lambda: producer.init_transactions(CALL_S))
    return producer


def orders(bootstrap: str, first: int, transactions: int) -> None:
    """Writes so many transactions of orders, whose numbers start with `first`."""
    ending, chosen = Ending(), random.Random(first)
    producer = transactional(bootstrap, ORDERS)
    for count in range(transactions):
        if ending.asked:
            break
        numbers = list(range(first, first + ORDERS_AT_ONCE))
        first += ORDERS_AT_ONCE
        is_kept = (count + 1) % ABORTED_EACH != 0
        tell({"begun" if is_kept else "never": numbers})
        producer.begin_transaction()
        for number in numbers:
            giver, taker = chosen.sample(range(ACCOUNTS), 2)
            order = {"order": number, "from": giver, "to": taker, "amount": chosen.randint(1, 100)}
            producer.produce(ORDERS, json.dumps(order).encode(), partition=number % PARTITIONS)
        if is_kept:
            persist(lambda: producer.commit_transaction(CALL_S))
            tell({"ordered": numbers})
        else:
            producer.flush(CALL_S)
            persist(lambda: producer.abort_transaction(CALL_S))


def mover(bootstrap: str, name: str) -> None:
    """Execute orders until asked to end."""
    ending = Ending()
    producer = transactional(bootstrap, name)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.max.ms": 500,
        }
    )
    consumer.subscribe([ORDERS])
    while not ending.asked:
        messages = [message for message in consumer.consume(20, POLL_S) if message.error() is None]
        if not messages:
            continue
        try:
            move(producer, consumer, messages)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell({"aborted": error.args[0].name()})
            persist(lambda: producer.abort_transaction(CALL_S))
            rewind(consumer)
    consumer.close()


def move(producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
    """One transaction: both sides of each order, and the offsets of the read orders."""
    numbers = []
    producer.begin_transaction()
    for message in messages:
        order = json.loads(message.value())
        numbers.append(order["order"])
        for account, amount in ((order["from"], -order["amount"]), (order["to"], order["amount"])):
            entry = {"order": order["order"], "account": account, "amount": amount}
            producer.produce(ENTRIES, json.dumps(entry).encode(), partition=account % PARTITIONS)
    ends: dict[int, int] = {}
    for message in messages:
        ends[message.partition()] = (message.offset() or 0) + 1
    read = [TopicPartition(ORDERS, number, offset) for number, offset in ends.items()]
    signal.alarm(STUCK_S)
    persist(lambda: producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), CALL_S))
    signal.alarm(0)
    persist(lambda: producer.commit_transaction(CALL_S))
    tell({"moved": numbers})


def rewind(consumer: Consumer) -> None:
    """Go back to the orders of an aborted transaction."""
    assigned = consumer.assignment()
    for place in persist(lambda: consumer.committed(assigned, CALL_S)) if assigned else []:
        consumer.seek(
            TopicPartition(place.topic, place.partition, place.offset if place.offset >= 0 else OFFSET_BEGINNING)
        )


def auditor(bootstrap: str, positions: list[tuple[str, int, int]]) -> None:
    """Reports all committed records, from these positions on."""
    ending = Ending()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "group.id": "auditor",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(*position) for position in positions])
    while not ending.asked:
        found = [message for message in consumer.consume(500, POLL_S) if message.error() is None]
        if found:
            tell(
                [
                    [message.topic(), message.partition(), message.offset(), json.loads(message.value())]
                    for message in found
                ]
            )
    consumer.close()


PROGRAMS: dict[str, Callable[..., None]] = {"orders": orders, "mover": mover, "auditor": auditor}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    PROGRAMS[given.pop("program")](**given)

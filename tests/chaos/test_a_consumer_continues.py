"""A consumer whose broker is killed again and again: each time it continues, and gets every record.

It is librdkafka's, by both protocols; nothing but its own requests brings it back: to a coordinator that is loading, to
a group that the broker has read from its log.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException

from lowtide.protocol.errors import ErrorCode
from tests.free_ports import HOST, free_ports

from .asking import CREATE_TOPICS_VERSION, PRODUCE_VERSION, only_row, produce_request, topic_request
from .serving import ServeProcess

TOPIC, GROUP, PARTITIONS = "read", "readers", 3
AT_ONCE = 5
LIFE_S = 1.0
LIMIT_S = 120.0
"""The limit for the records of a round. It is long: the machine may be busy, and the client waits between attempts."""

SEED = 7


class Reader:
    """The consumer, polled by a separate thread."""

    def __init__(self, port: int, protocol: str) -> None:
        settings = {"group.protocol": protocol} if protocol == "consumer" else {"session.timeout.ms": 6000}
        self._consumer = Consumer(
            {
                "bootstrap.servers": f"{HOST}:{port}",
                "broker.address.family": "v4",
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self.read: Counter[bytes] = Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> Self:
        self._consumer.subscribe([TOPIC])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "a call of the client does not return"
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert isinstance(value, bytes)
            self.read[value] += 1
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                pass  # The broker is gone; a later commit says more.


async def produced(broker: ServeProcess, values: list[bytes]) -> None:
    """Each to a partition in turn."""
    client = await broker.connect()
    for number, value in enumerate(values):
        row = only_row(await client.request(produce_request(TOPIC, number % PARTITIONS, [value]), PRODUCE_VERSION))
        assert row.error_code == ErrorCode.NONE, row
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "rounds"),
    [("consumer", 3), *(pytest.param(each, 20, marks=pytest.mark.slowest) for each in ("consumer", "classic"))],
)
async def test_after_each_kill_it_reads_on(tmp_path: Path, protocol: str, rounds: int) -> None:
    (port,) = free_ports(1)
    settings = (
        f"listeners=PLAINTEXT://{HOST}:{port}",
        "offsets.topic.num.partitions=1",
        "group.initial.rebalance.delay.ms=0",
    )
    chance = random.Random(SEED)
    written: list[bytes] = []
    async with ServeProcess(tmp_path, *settings) as broker:
        client = await broker.connect()
        answer = await client.request(topic_request(TOPIC, partitions=PARTITIONS), CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == ErrorCode.NONE
        client.close()
        with Reader(port, protocol) as reader:
            for each in range(rounds):
                written += (values := [b"%d" % (each * AT_ONCE + number) for number in range(AT_ONCE)])
                await produced(broker, values)
                async with asyncio.timeout(LIMIT_S):
                    while len(reader.read) < len(written):
                        await asyncio.sleep(0.02)
                await asyncio.sleep(chance.uniform(0, LIFE_S))
                await broker.kill()
                assert broker.faults == []
                await broker.launch()
                await broker.wait_ready()
    assert set(reader.read) == set(written)

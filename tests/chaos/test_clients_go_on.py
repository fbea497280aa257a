"""Unmodified kcat and Python clients against three brokers, one of which fails and returns: no record is lost, duplicated or reordered.

Each client has its own topic, led by the broker that fails, and producers and consumers that stay open.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.testing.etcd import missing
from tests.clients.driver import Sent
from tests.clients.open_clients import OPEN_CONSUMERS, OPEN_PRODUCERS, kcat_value

from .cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

AT_ONCE = 5
LIMIT_S = 120.0
PACE_S = 0.02
"""Between the rounds of a producer: as fast as they can, six clients would keep the machine busy for as long as the brokers take."""


class Worker:
    """A producer or consumer in its own thread, as its library requires."""

    def __init__(self, work: Callable[[Worker], None]) -> None:
        self.rounds = 0
        self.stop = threading.Event()
        self._failure: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - reported to the test
            self._failure = error

    async def until(self, rounds: int) -> None:
        """Return when this many rounds are done in total."""
        async with asyncio.timeout(LIMIT_S):
            while self.rounds < rounds:
                self.raise_failure()
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.stop.set()
        await asyncio.to_thread(self._thread.join, LIMIT_S)
        self.raise_failure()
        assert not self._thread.is_alive()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def producing(name: str, bootstrap: str, topic: str) -> Callable[[Worker], None]:
    def work(worker: Worker) -> None:
        with OPEN_PRODUCERS[name](bootstrap, topic, idempotent=True) as producer:
            while not worker.stop.is_set():
                first = worker.rounds * AT_ONCE
                for number in range(first, first + AT_ONCE):
                    producer.send(Sent(b"k", kcat_value(number)), 0)
                offsets = producer.flush()
                assert offsets == list(range(first, first + AT_ONCE)), f"{name} received {offsets}, not {first} and on"
                worker.rounds += 1
                worker.stop.wait(PACE_S)

    return work


def consuming(name: str, bootstrap: str, topic: str, producer: Worker) -> Callable[[Worker], None]:
    """Reads only acknowledged records of the producer: a read without records would end in its timeout."""

    def work(worker: Worker) -> None:
        with OPEN_CONSUMERS[name](bootstrap, topic, {0: 0}) as consumer:
            while not worker.stop.is_set() or worker.rounds < producer.rounds:
                if worker.rounds == producer.rounds:
                    worker.stop.wait(0.01)
                    continue
                first = worker.rounds * AT_ONCE
                found = [(record.offset, record.value) for record in consumer.read(AT_ONCE)[0]]
                assert found == [(number, kcat_value(number)) for number in range(first, first + AT_ONCE)], name
                worker.rounds += 1

    return work


async def test_clients_continue_while_a_broker_fails_and_returns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="kafka")
    caplog.set_level(logging.CRITICAL, logger="aiokafka")
    workers: list[Any] = []
    async with ClusterProcesses(tmp_path) as cluster:
        topics = {name: f"of-{name}" for name in OPEN_PRODUCERS}
        for topic in topics.values():
            await cluster.create_topic(topic, [[1, 2, 3]])
        producers = {name: Worker(producing(name, cluster.bootstrap, topic)) for name, topic in topics.items()}
        consumers = {
            name: Worker(consuming(name, cluster.bootstrap, topics[name], producers[name])) for name in OPEN_CONSUMERS if name in producers
        }
        workers = [*producers.values(), *consumers.values()]
        try:
            for worker in workers:
                await worker.until(2)
            await cluster.kill(1)
            for worker in workers:
                await worker.until(worker.rounds + 2)
            await cluster.start(1)
            for topic in topics.values():
                await cluster.until_in_sync(topic)
            for worker in workers:
                await worker.until(worker.rounds + 2)
        finally:
            for worker in workers:
                worker.stop.set()
            ended = await asyncio.gather(*(worker.end() for worker in workers), return_exceptions=True)
        assert [each for each in ended if each is not None] == []
        for name, topic in topics.items():
            row = await cluster.until_in_sync(topic)
            assert await cluster.bounds(row.leader_id, topic) == (0, producers[name].rounds * AT_ONCE), name
        cluster.check_no_faults()

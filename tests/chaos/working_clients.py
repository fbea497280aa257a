"""Unmodified kcat and Python clients that stay open and work on while something happens to their brokers; what they
report is raised.

Each client has its own topic. Producers are idempotent and acknowledged by all; readers read every acknowledged record
once, in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.clients.driver import OutgoingRecord
from tests.clients.group_members import MEMBERS, member
from tests.clients.open_clients import OPEN_CONSUMERS, OPEN_PRODUCERS, kcat_value

from .cluster_processes import ClusterProcesses

AT_ONCE = 5
LIMIT_S = 120.0
PACE_S = 0.02
"""The pause between the rounds of a producer; without it six clients would keep the machine busy."""


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
        except BaseException as error:
            self._failure = error

    async def until(self, rounds: int) -> None:
        """Waits until this many rounds are done in total."""
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
                    producer.send(OutgoingRecord(b"k", kcat_value(number)), 0)
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


def committing(name: str, bootstrap: str, topic: str, producer: Worker) -> Callable[[Worker], None]:
    """Returns a group of one member, which reads each record once and commits it; a round is a commit of the member."""

    def work(worker: Worker) -> None:
        with member(name, bootstrap, topic, f"of-{name}") as reader:
            expected = 0
            while not worker.stop.is_set() or expected < producer.rounds * AT_ONCE:
                found = [offset for _, offset in reader.poll()]
                if not found:
                    continue
                assert found == list(range(expected, expected + len(found))), (
                    f"{name} read {found}, not {expected} and on"
                )
                expected += len(found)
                reader.commit()
                worker.rounds += 1

    return work


class WorkingClients:
    """All clients at work."""

    def __init__(self, topics: dict[str, str], producers: dict[str, Worker], others: list[Worker]) -> None:
        self.topics = topics
        self.producers = producers
        self.workers = [*producers.values(), *others]

    async def go_on(self) -> None:
        """Waits until each has done two further rounds. Errors: those of the clients."""
        for worker in self.workers:
            await worker.until(worker.rounds + 2)

    async def check_ends(self, cluster: ClusterProcesses) -> None:
        """Each topic has what its producer wrote, once."""
        for name, topic in self.topics.items():
            row = await cluster.until_in_sync(topic)
            assert await cluster.bounds(row.leader_id, topic) == (0, self.producers[name].rounds * AT_ONCE), name


@asynccontextmanager
async def working_clients(cluster: ClusterProcesses, *, groups: bool = False) -> AsyncIterator[WorkingClients]:
    """Topics with replicas on brokers 1, 2 and 3, and clients that work on them until the end; with `groups` also
    members of groups.

    Errors: what one of them met.
    """
    topics = {name: f"of-{name}" for name in OPEN_PRODUCERS}
    for topic in topics.values():
        await cluster.create_topic(topic, [[1, 2, 3]])
    producers = {name: Worker(producing(name, cluster.bootstrap, topic)) for name, topic in topics.items()}
    readers = [
        Worker(consuming(name, cluster.bootstrap, topics[name], producers[name]))
        for name in OPEN_CONSUMERS
        if name in producers
    ]
    if groups:
        readers += [Worker(committing(name, cluster.bootstrap, topics[name], producers[name])) for name in MEMBERS]
    clients = WorkingClients(topics, producers, readers)
    try:
        await clients.go_on()
        yield clients
    finally:
        for worker in clients.workers:
            worker.stop.set()
        ended = await asyncio.gather(*(worker.end() for worker in clients.workers), return_exceptions=True)
    assert [each for each in ended if each is not None] == []

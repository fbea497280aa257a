"""A cluster of real processes: an etcd and several `lowtide serve`, on free loopback ports, each with its own
directory.

Only processes that this module started are signalled, by id, and all have ended at the end. With `links` brokers reach
each other through proxies (`links.py`). All waits are for a broker's log line or its response.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopicResult
from lowtide.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from lowtide.simulation.client import ConnectionLostError, WireClient
from tests.etcd import EtcdCluster, EtcdProcess
from tests.free_ports import HOST, free_ports

from .asking import (
    CREATE_TOPICS_VERSION,
    DELETE_RECORDS_VERSION,
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    fetch_request,
    offsets_request,
    only_row,
    produce_request,
    records_from,
    topic_request,
)
from .links import Links
from .namespaces import HUB, Namespaces
from .security import ADMIN, CLIENT, Security
from .serving import ServeProcess

METADATA_VERSION = 12
LIMIT_S = 120.0
"""The limit for any expected event. It is long because the machine may be busy."""

ANSWER_LIMIT_S = 10.0
"""The limit for a response from memory."""

LOOK_AGAIN_S = 0.01

SESSION_TIMEOUT_S, LAG_S = 2.0, 3.0
QUICK = (
    f"broker.session.timeout.ms={int(SESSION_TIMEOUT_S * 1000)}",
    "broker.heartbeat.interval.ms=250",
    f"replica.lag.time.max.ms={int(LAG_S * 1000)}",
    "auto.create.topics.enable=false",
    "auto.leader.rebalance.enable=false",
    "min.insync.replicas=2",
)
"""Shorter sessions than the default, and leaders that move only when a test requests it."""


class NotInTimeError(AssertionError):
    """What was expected did not happen within its limit: a fault, or a machine that gave the brokers no time."""


class ClusterProcesses:
    """An etcd and several broker processes. Used as `async with`."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        brokers: int = 3,
        links: bool = False,
        etcd_members: int = 1,
        namespaces: Namespaces | None = None,
        security: Security | None = None,
        etcd_settings: Sequence[str] = (),
    ) -> None:
        """With `namespaces`, the caller is in their hub.

        With `security`, clients and brokers log in, and etcd asks for a certificate.
        `etcd_settings` are further options of the only member.
        """
        self.directory = directory
        self.ids = tuple(range(1, brokers + 1))
        self.directories = {broker_id: directory / f"broker-{broker_id}" for broker_id in self.ids}
        """The log directory of each broker at its next start."""
        self.further: dict[int, list[str]] = {broker_id: [] for broker_id in self.ids}
        """Further settings of each broker from its next start on."""
        self.pythons = dict.fromkeys(self.ids, sys.executable)
        """Sets the interpreter of each broker from its next start on, with that environment's Lowtide."""
        self.brokers: dict[int, ServeProcess] = {}
        self.past: list[tuple[int, ServeProcess]] = []
        self.links: Links | None = None
        self.frozen: set[int] = set()
        self._settings = (*QUICK, *settings)
        self._with_links = links
        self._namespaces = namespaces
        self._security = security
        self._hosts = {
            broker_id: HOST if namespaces is None else namespaces.address(broker_id) for broker_id in self.ids
        }
        self._etcd: EtcdProcess | EtcdCluster = (
            EtcdProcess(
                directory / "etcd",
                *etcd_settings,
                host=HOST if namespaces is None else HUB,
                tls=() if security is None else security.etcd_options,
            )
            if etcd_members == 1
            else EtcdCluster(directory / "etcd", members=etcd_members)
        )
        self._ports = dict(zip(self.ids, free_ports(brokers), strict=True))
        self._peer_ports = dict(zip(self.ids, free_ports(brokers), strict=True))
        self._connections: dict[int, WireClient] = {}
        self._troubled: dict[int, float] = {}

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._etcd.__enter__)
        try:
            if self._with_links:
                self.links = await Links(self._peer_ports).__aenter__()
            if self._security is not None:
                await self._security.add_users(self._metadata)
            await self.start(*self.ids)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.forget_connections()
        for broker in self.brokers.values():
            await broker.kill()
        if self.links is not None:
            await self.links.__aexit__()
        await asyncio.to_thread(self._etcd.__exit__, None, None, None)

    # ------------------------------------------------------------------ starts and stops
    @property
    def etcd(self) -> EtcdProcess:
        """The only member, or the first."""
        return self._etcd if isinstance(self._etcd, EtcdProcess) else self._etcd.members[0]

    @property
    def etcd_members(self) -> list[EtcdProcess]:
        """All members."""
        return [self._etcd] if isinstance(self._etcd, EtcdProcess) else self._etcd.members

    @property
    def bootstrap(self) -> str:
        """The addresses for client libraries."""
        return ",".join(f"{self._hosts[broker_id]}:{port}" for broker_id, port in self._ports.items())

    async def start(self, *broker_ids: int) -> None:
        """Starts brokers, together; returns when all serve."""
        for broker_id in broker_ids:
            await self.launch(broker_id)
        for broker_id in broker_ids:
            await self.brokers[broker_id].wait_ready()
            self._troubled[broker_id] = time.monotonic()

    async def launch(self, broker_id: int) -> None:
        """Starts a broker without waiting for it."""
        if broker_id in self.brokers:
            self.past.append((broker_id, self.brokers[broker_id]))
        broker = self.brokers[broker_id] = ServeProcess(
            self.directories[broker_id],
            *self._settings_of(broker_id),
            metadata=self._metadata,
            within=() if self._namespaces is None else self._namespaces.command(broker_id),
            options=() if self._security is None else self._security.metadata_options,
            python=self.pythons[broker_id],
        )
        await broker.launch()

    async def kill(self, *broker_ids: int) -> None:
        """SIGKILL to all, then wait for their ends."""
        for broker_id in broker_ids:
            self.brokers[broker_id].kill_now()
        for broker_id in broker_ids:
            self._troubled[broker_id] = time.monotonic()
            self.frozen.discard(broker_id)
            self._drop_connection(broker_id)
            await self.brokers[broker_id].kill()

    async def restart(self, *broker_ids: int) -> None:
        """SIGKILL and a new start."""
        await self.kill(*broker_ids)
        await self.start(*broker_ids)

    async def terminate(self, broker_id: int) -> int:
        """SIGTERM; returns the exit code."""
        self._troubled[broker_id] = time.monotonic()
        self._drop_connection(broker_id)
        return await self.brokers[broker_id].terminate()

    def freeze(self, broker_id: int) -> None:
        """SIGSTOP."""
        self.frozen.add(broker_id)
        self._drop_connection(broker_id)
        self.brokers[broker_id].freeze()

    def thaw(self, broker_id: int) -> None:
        """SIGCONT."""
        self.frozen.discard(broker_id)
        self._troubled[broker_id] = time.monotonic()
        self.brokers[broker_id].thaw()

    def was_well_since(self, broker_id: int, moment: float) -> bool:
        """Returns whether a broker has served without being frozen since this moment (on the monotonic clock)."""
        return broker_id in self.awake and self._troubled.get(broker_id, -1.0) < moment

    @property
    def awake(self) -> list[int]:
        """Brokers that should answer."""
        return [
            broker_id
            for broker_id, broker in self.brokers.items()
            if broker.is_running and broker.is_ready and broker_id not in self.frozen
        ]

    def check_no_faults(self) -> None:
        """Checks that no broker, running or stopped, reported an internal error."""
        faults = {f"broker {broker_id}": broker.faults for broker_id, broker in [*self.past, *self.brokers.items()]}
        assert not any(faults.values()), faults

    # ------------------------------------------------------------------ requests
    @property
    def _metadata(self) -> str:
        is_open = self._security is None
        return "etcd://" + ",".join(each.endpoint if is_open else each.secured_endpoint for each in self.etcd_members)

    async def connect(
        self, broker_id: int, user: str = CLIENT, password: str = "", *, by_token: bool = False
    ) -> WireClient:
        """Returns a separate connection, of that user where clients log in.

        Errors: OSError, TimeoutError included; LoginRefusedError.
        """
        host, port = self._hosts[broker_id], self._ports[broker_id]
        async with asyncio.timeout(ANSWER_LIMIT_S):
            if self._security is None:
                return await WireClient.connect(host, port)
            return await self._security.connect(host, port, user, password, by_token=by_token)

    async def ask(self, broker_id: int, request: Any, version: int, *, limit_s: float = ANSWER_LIMIT_S) -> Any:
        """Returns a broker's answer. Errors: OSError if it cannot be reached, ends, or does not answer in time."""
        client = self._connections.get(broker_id)
        if client is None or client.lost:
            client = self._connections[broker_id] = await self.connect(broker_id, ADMIN)
        try:
            async with asyncio.timeout(limit_s):
                return await client.request(request, version)
        except TimeoutError:
            self._drop_connection(broker_id)
            raise ConnectionLostError(
                f"broker {broker_id} did not answer {type(request).__name__} within {limit_s} s"
            ) from None

    async def metadata(self, broker_id: int, *topics: str) -> MetadataResponse:
        """Returns a broker's metadata of topics, of all topics without names. Errors: OSError."""
        wanted = [MetadataRequestTopic(name=name) for name in topics] if topics else None
        return await self.ask(
            broker_id, MetadataRequest(topics=wanted, allow_auto_topic_creation=False), METADATA_VERSION
        )

    async def partition(
        self, topic: str, number: int = 0, *, of: int | None = None
    ) -> MetadataResponsePartition | None:
        """Returns a partition according to a broker, or to any that runs; None without an answer."""
        for broker_id in self.awake if of is None else [of]:
            with contextlib.suppress(OSError):
                answer = (await self.metadata(broker_id, topic)).topics[0]
                for row in answer.partitions:
                    if row.partition_index == number:
                        return row
        return None

    async def until_partition(
        self,
        topic: str,
        condition: Callable[[MetadataResponsePartition], bool],
        number: int = 0,
        *,
        of: int | None = None,
    ) -> MetadataResponsePartition:
        """Waits until a broker, or any that runs, reports such a partition."""
        row: MetadataResponsePartition | None = None
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    row = await self.partition(topic, number, of=of)
                    if row is not None and condition(row):
                        return row
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            raise NotInTimeError(
                f"the expected state of {topic}-{number} was not reached; last: {row}\n{self.tail()}"
            ) from None

    async def until_in_sync(
        self, topic: str, number: int = 0, *, members: set[int] | None = None
    ) -> MetadataResponsePartition:
        """Waits until all replicas, or just these, are in sync, according to each running broker."""
        row = None
        for broker_id in self.awake:
            row = await self.until_partition(
                topic,
                lambda row: row.leader_id >= 0 and set(row.isr_nodes) == (members or set(row.replica_nodes)),
                number,
                of=broker_id,
            )
        assert row is not None
        return row

    async def until(self, what: str, condition: Callable[..., Awaitable[bool]], *, limit_s: float = LIMIT_S) -> float:
        """Waits until the condition holds; returns the seconds it took."""
        begun = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with contextlib.suppress(OSError):
                        if await condition():
                            return time.monotonic() - begun
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            raise NotInTimeError(f"{what}: it did not happen within {limit_s} s\n{self.tail()}") from None

    async def create_topic(
        self,
        name: str,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        partitions: int = -1,
        configs: dict[str, str] | None = None,
    ) -> None:
        """Through any broker; returns when all replicas are in sync, according to all brokers.

        On a busy machine a broker may have lost its short session, and registers again: the request waits for those
        that it names, and is repeated, as clients do, where the broker is no longer the controller that it was when the
        request came.
        """
        asked = self.awake[-1]
        named = {broker_id for replicas in assignment or () for broker_id in replicas}

        async def are_registered() -> bool:
            return named <= {broker.node_id for broker in (await self.metadata(asked)).brokers}

        await self.until(f"brokers {sorted(named)} are registered", are_registered)
        request = topic_request(name, assignment, partitions=partitions, configs=configs)
        rows: list[CreatableTopicResult] = []

        async def is_decided() -> bool:
            rows[:] = (await self.ask(asked, request, CREATE_TOPICS_VERSION, limit_s=LIMIT_S)).topics
            return rows[0].error_code != ErrorCode.NOT_CONTROLLER

        await self.until(f"{name} is created or refused", is_decided)
        assert rows[0].error_code == ErrorCode.NONE, (ErrorCode(rows[0].error_code), rows[0].error_message)
        for number in range(len(assignment) if assignment else max(partitions, 1)):
            await self.until_in_sync(name, number)

    async def produce(
        self,
        broker_id: int,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 10_000,
    ) -> Any:
        """Returns the row of the response. Errors: OSError."""
        request = produce_request(topic, partition, values, acks=acks, timeout_ms=timeout_ms)
        return only_row(await self.ask(broker_id, request, PRODUCE_VERSION, limit_s=timeout_ms / 1000 + ANSWER_LIMIT_S))

    async def delete(
        self,
        broker_id: int,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        timeout_ms: int = 10_000,
        leader_only: bool = False,
    ) -> Any:
        """Returns the row of the response. Errors: OSError."""
        request = delete_request(topic, partition, offset, timeout_ms=timeout_ms, leader_only=leader_only)
        return only_row(
            await self.ask(broker_id, request, DELETE_RECORDS_VERSION, limit_s=timeout_ms / 1000 + ANSWER_LIMIT_S)
        )

    async def acknowledged(self, topic: str, ask: Callable[[int], Awaitable[Any]], *, partition: int = 0) -> int:
        """Asks whichever broker leads the partition until it answers with success; returns it.

        On a busy machine a leader may lose its short session just then, or a follower's. A leader that loses its own
        may have appended what it refuses, and that may stay.
        """
        leader = -1

        async def is_acknowledged() -> bool:
            nonlocal leader
            row = await self.until_partition(topic, lambda row: row.leader_id in self.awake, partition)
            leader = row.leader_id
            error = ErrorCode((await ask(leader)).error_code)
            assert error in {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}, error
            return error == ErrorCode.NONE

        await self.until(f"a request to the leader of {topic} succeeds", is_acknowledged)
        return leader

    async def append(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> int:
        """Produces to whichever broker leads, until it acknowledges; returns the base offset."""
        row: Any = None

        async def produce(leader: int) -> Any:
            nonlocal row
            row = await self.produce(leader, topic, values, partition=partition)
            return row

        await self.acknowledged(topic, produce, partition=partition)
        return int(row.base_offset)

    async def fetch(
        self, broker_id: int, topic: str, offset: int, *, partition: int = 0
    ) -> tuple[Any, dict[int, bytes]]:
        """Returns the row of the response and its records, as a client delivers them. Errors: OSError."""
        row = only_row(await self.ask(broker_id, fetch_request(topic, partition, offset), FETCH_VERSION))
        return row, records_from(row.records, offset)

    async def bounds(self, broker_id: int, topic: str, *, partition: int = 0) -> tuple[int, int] | ErrorCode:
        """Log start and log end for readers. Errors: OSError."""
        found = []
        for timestamp in (EARLIEST, LATEST):
            row = only_row(
                await self.ask(broker_id, offsets_request(topic, partition, timestamp), LIST_OFFSETS_VERSION)
            )
            if row.error_code != ErrorCode.NONE:
                return ErrorCode(row.error_code)
            found.append(row.offset)
        return found[0], found[1]

    def tail(self, lines: int = 12) -> str:
        """Returns the last log lines of every broker, for a message."""
        told = []
        for broker_id, broker in self.brokers.items():
            told += [
                f"broker {broker_id}: {' '.join(str(value) for value in line.values())}"
                for line in broker.lines[-lines:]
            ] + broker.noise
        return "\n".join(told)

    def forget_connections(self) -> None:
        """Closes every connection of `ask`."""
        for broker_id in list(self._connections):
            self._drop_connection(broker_id)

    def _drop_connection(self, broker_id: int) -> None:
        client = self._connections.pop(broker_id, None)
        if client is not None:
            client.close()

    def _settings_of(self, broker_id: int) -> list[str]:
        port, peer_port = self._ports[broker_id], self._peer_ports[broker_id]
        listening = [f"listeners=PLAINTEXT://{self._hosts[broker_id]}:{port}"]
        if self._security is not None:
            listening = self._security.settings(self._hosts[broker_id], port)
        if self.links is not None:
            listening = [
                f"listeners=CLIENTS://{HOST}:{port},PEERS://{HOST}:{peer_port}",
                f"advertised.listeners=CLIENTS://{HOST}:{port},PEERS://{HOST}:{self.links.ports[broker_id]}",
                "listener.security.protocol.map=CLIENTS:PLAINTEXT,PEERS:PLAINTEXT",
                "inter.broker.listener.name=PEERS",
            ]
        return [*self._settings, f"node.id={broker_id}", *listening, *self.further[broker_id]]

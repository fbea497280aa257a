"""One piece of a soak: the cluster, what all jobs share, and when it ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide.admin import AdminClient
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.simulation.client import WireClient
from lowtide.simulation.history import HistoryError
from tests.chaos.client_processes import ClientProcess
from tests.chaos.cluster_processes import ClusterProcesses, NotInTimeError
from tests.chaos.security import ADMIN, Security

from .kept import SoakFolder

PARTS = ("erasures", "table", "share", "streams", "tls")
"""What may be left out, because an earlier version lacks it."""

SMALL = {"segment.bytes": str(1 << 20), "retention.ms": "120000", "segment.ms": "60000"}
SETTINGS = (
    "broker.session.timeout.ms=15000",
    "broker.heartbeat.interval.ms=1000",
    "replica.lag.time.max.ms=15000",
    "auto.leader.rebalance.enable=true",
    "leader.imbalance.check.interval.seconds=30",
    "log.retention.check.interval.ms=10000",
    "log.cleaner.backoff.ms=5000",
    "log.segment.delete.delay.ms=5000",
    "offsets.topic.num.partitions=3",
    "offsets.topic.segment.bytes=1048576",
    "transaction.state.log.num.partitions=3",
    "transaction.state.log.segment.bytes=1048576",
    "group.initial.rebalance.delay.ms=0",
)
"""Small segments and short times, so that what happens once a day elsewhere happens many times an hour here. Sessions
are long, because the machine has other work."""

ERASURES = ("lowtide.erasure.standing.interval.ms=10000",)
SHARES = (
    "share.coordinator.state.topic.num.partitions=3",
    "share.coordinator.state.topic.segment.bytes=1048576",
)

ETCD = ("--auto-compaction-mode=revision", "--auto-compaction-retention=1000")
"""The settings of docs/etcd.md, but with a shorter history, for the same reason."""

LOOK_EACH_S = 0.5
STARVED_WITHIN_S, STARVED_S = 300.0, 5.0
"""The machine had no time for us if our loop was late by so much in the last minutes."""

COORDINATOR_VERSION = 4
LOADING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Answers after which a member of a group asks again."""


class SoakCluster(ClusterProcesses):
    """A cluster whose directories may have data. All its clients are administrators."""

    def __init__(self, folder: Path, parts: set[str]) -> None:
        settings = [*SETTINGS, *(ERASURES if "erasures" in parts else ()), *(SHARES if "share" in parts else ())]
        self.security = Security(folder / "security") if "tls" in parts else None
        super().__init__(folder, *settings, etcd_settings=ETCD, security=self.security)

    async def connect(
        self, broker_id: int, user: str = ADMIN, password: str = "", *, by_token: bool = False
    ) -> WireClient:
        return await super().connect(broker_id, user, password, by_token=by_token)

    @property
    def client_properties(self) -> dict[str, str]:
        """The settings of Kafka's clients."""
        login = {} if self.security is None else self.security.client_properties(ADMIN)
        return {"bootstrap.servers": self.bootstrap, **login}

    @property
    def librdkafka_properties(self) -> dict[str, str]:
        """The settings of librdkafka."""
        login = {} if self.security is None else self.security.librdkafka_properties(ADMIN)
        return {"bootstrap.servers": self.bootstrap, **login}


class Run:
    """What the jobs of a piece share."""

    def __init__(self, cluster: SoakCluster, folder: SoakFolder, options: argparse.Namespace, left_s: float) -> None:
        """`left_s` is how long it goes on."""
        self.cluster = cluster
        self.folder = folder
        self.options = options
        self.piece = folder.begin_piece()
        self.counts: Counter[str] = Counter()
        """What was done in this piece."""
        self.reported: Counter[str] = Counter()
        """What clients reported."""
        self.gauges: dict[str, float] = {}
        """The last values of what jobs measure themselves."""
        self.restarting = False
        self._begun_s = time.monotonic()
        self._until_s = self._begun_s + left_s
        self._ended = asyncio.Event()
        self.was_ended_early = False
        """Whether the machine had no time for it."""
        self._late: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Notes how late our own loop is, which gets as much of the machine as each broker."""
        while True:
            due_s = time.monotonic() + LOOK_EACH_S
            await asyncio.sleep(LOOK_EACH_S)
            now_s = time.monotonic()
            self._late = [each for each in self._late if each[0] > now_s - STARVED_WITHIN_S]
            if now_s - due_s > LOOK_EACH_S:
                self._late.append((now_s, now_s - due_s))

    def was_starved(self, error: Exception) -> bool:
        """Returns whether an error only says that something was late, at a time when our own loop was late, too."""
        is_late = isinstance(error, NotInTimeError | OSError) and not isinstance(error, HistoryError)
        return is_late and sum(late_s for _, late_s in self._late) > STARVED_S

    @property
    def seconds(self) -> float:
        """Since the piece began."""
        return time.monotonic() - self._begun_s

    def end(self) -> None:
        """Ends it early, as if its time were over."""
        self._ended.set()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._until_s and not self._ended.is_set()

    async def pause(self, seconds: float) -> bool:
        """Waits so long, or until the end. Returns whether the run continues."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(min(seconds, self._until_s - time.monotonic()), 0.0))
        return self.goes_on

    def admin(self) -> AdminClient:
        """Returns a client, to be used in `async with`."""
        return AdminClient(self.cluster.client_properties)

    async def topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Has a topic whose leaders are spread; creates it unless it is there."""
        if await self.topic_row(name) is not None:
            return
        assignment = [[1 + (number + shift) % 3 for shift in range(3)] for number in range(partitions)]
        await self.cluster.create_topic(name, assignment, configs=dict(configs))

    async def topic_row(self, name: str) -> Any:
        """Returns a topic in the metadata of a broker, once one answers; None if it isn't there."""
        found: list[Any] = []

        async def is_answered() -> bool:
            found[:] = (await self.cluster.metadata(self._any_broker(), name)).topics
            return found[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        await self.cluster.until(f"metadata of {name}", is_answered)
        return found[0] if found[0].error_code == ErrorCode.NONE else None

    def client(self, name: str) -> ClientProcess:
        """Returns a process of `programs`, named by its program and its topic."""
        program, _, topic = name.partition(" ")
        given = {"settings": self.cluster.librdkafka_properties, "program": program, "topic": topic}
        return ClientProcess("tests.soak.programs", given, self._on_report)

    def _on_report(self, report: dict[str, Any]) -> None:
        for what, value in report.items():
            self.reported[f"{what}: {value}" if isinstance(value, str) else what] += 1

    async def ask_coordinator(self, group: str, request: Any, version: int) -> Any:
        """Returns the answer of the group's coordinator; None while there is none that answers."""
        with contextlib.suppress(OSError):
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            found = (await self.cluster.ask(self._any_broker(), find, COORDINATOR_VERSION)).coordinators[0]
            if found.error_code == ErrorCode.NONE and found.node_id in self.cluster.awake:
                return await self.cluster.ask(found.node_id, request, version)
        return None

    def _any_broker(self) -> int:
        """Errors: OSError without a broker."""
        if not self.cluster.awake:
            raise ConnectionError("no broker runs")
        return self.cluster.awake[0]


Job = Callable[[Run], Any]
Jobs = Sequence[Job]

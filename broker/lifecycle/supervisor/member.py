"""A broker in the supervisor's process: its child process, its orders, and its restarts."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from lowtide.broker.config.broker_config import Setting, load_config
from lowtide.broker.lifecycle.supervisor.line import (
    BrokerLoadReport,
    BrokerReady,
    Configuration,
    Hurry,
    Line,
    Message,
    PageRequest,
    PageResponse,
    PagesRequest,
    Stop,
)
from lowtide.metadata.store import MetadataStoreError
from lowtide.metadata.store_server import ServedConnection, serve_store
from lowtide.runtime.child_process import ChildProcess, start_child
from lowtide.runtime.network import over_socket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.broker.lifecycle.supervisor.shares import BrokerShare
    from lowtide.metadata.store import MetadataStore
    from lowtide.replication.leader_balance import BrokerLoad

PAGE_TIMEOUT_S: Final = 3.0
"""The time limit for a metrics page: that of 10,000 partitions takes a second."""


FIRST_DELAY_MS: Final = 100
LAST_DELAY_MS: Final = 30_000

STEADY_MS: Final = 60_000
"""A process that served for this long is steady: its end resets the count."""

LOGGED_ENDS_MAX: Final = 5
"""The number of consecutive ends that are logged, before one last line."""


class Restarts:
    """Decides when a process is restarted: at once after a steady life, with growing delays otherwise. Values only."""

    def __init__(self) -> None:
        self.in_a_row = 0
        """The consecutive ends since the last steady life."""
        self._ready_ms: int | None = None

    def on_ready(self, now_ms: int) -> None:
        self._ready_ms = now_ms

    def on_ended(self, now_ms: int) -> int:
        """Notes that the process ended. Returns the delay of its restart in ms."""
        if self._ready_ms is not None and now_ms - self._ready_ms >= STEADY_MS:
            self.in_a_row = 0
        self._ready_ms = None
        self.in_a_row += 1
        return min(FIRST_DELAY_MS << min(self.in_a_row - 1, 20), LAST_DELAY_MS)


class BrokerProcessListener(Protocol):
    """The supervisor's reactions to messages of a broker."""

    def on_serves(self, member: BrokerProcess) -> None: ...

    def on_pages_asked(self, member: BrokerProcess, asked: PagesRequest) -> None: ...

    def on_load(self, load: BrokerLoad) -> None: ...


class BrokerProcess:
    """One broker, over any number of processes. `live` runs one process."""

    def __init__(
        self,
        share: BrokerShare,
        command: Sequence[str],
        configuration: Configuration,
        store: MetadataStore | None,
        log: Any,
        listener: BrokerProcessListener,
    ) -> None:
        """`command` starts the process; the numbers of its sockets are appended.

        `store` is served to it, if not None.
        """
        self._listener = listener
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._questions = 0
        self.node_id = share.node_id
        self.restarts = Restarts()
        self.address = ""
        """The address for clients; empty while it does not serve."""
        self._command = command
        self._configuration = configuration
        self._store = store
        self._log = log
        self._process: ChildProcess | None = None
        self._line: Line | None = None
        self._stops = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def live(self) -> int:
        """Runs the broker until its process ends.

        Returns the exit code, or minus the number of a signal. Its leases in a served store end with it. Errors:
        OSError if the process cannot be started.
        """
        served: list[ServedConnection] = []
        ours, theirs = socket.socketpair()
        passed = [theirs]
        line = Line(*await over_socket(ours))
        try:
            if self._store is not None:
                for _ in ("the broker's", "its lease keeper's"):
                    end, other = socket.socketpair()
                    passed.append(other)
                    served.append(await serve_store(self._store, end, self._on_fault))
            command = [*self._command, str(self.node_id), *(str(each.fileno()) for each in passed)]
            self._process = await start_child(command, passed)
            line.send(self._configuration)
            self._line = line
            if self._stops:
                line.send(Stop())
            await self._listen(line)
            return await self._process.wait()
        finally:
            self.address = ""
            self._process = self._line = None
            await line.close()
            for connection in served:
                await connection.close()
                with suppress(MetadataStoreError):  # They expire by themselves then.
                    await connection.end_leases()

    def stop(self) -> None:
        """Stops it gracefully, even if its process is just starting."""
        self._stops = True
        self.send(Stop())

    def hurry(self) -> None:
        self.send(Hurry())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def send(self, message: Message) -> None:
        if self._line is not None:
            self._line.send(message)

    async def page(self, form: str) -> bytes:
        """Returns its metrics page; empty if it does not serve or answer in time."""
        if not self.address:
            return b""
        self._questions += 1
        number = self._questions
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pages[number] = asked
        self.send(PageRequest(number, form))
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                return await asked
        except TimeoutError:
            return b""
        finally:
            self._pages.pop(number, None)

    async def _listen(self, line: Line) -> None:
        """Handles the messages of the process until its connection ends."""
        while (message := await line.receive()) is not None:
            if isinstance(message, BrokerReady):
                self.address = message.address
                self._keep_ports(message.ports)
                self._listener.on_serves(self)
            elif isinstance(message, PagesRequest):
                self._listener.on_pages_asked(self, message)
            elif isinstance(message, PageResponse):
                asked = self._pages.pop(message.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(message.page)
            elif isinstance(message, BrokerLoadReport):
                self._listener.on_load(message.load)

    def _keep_ports(self, ports: dict[str, int]) -> None:
        """Keeps the bound ports for the next process."""
        given = self._configuration.given
        config = load_config(given=given, host_name=self._configuration.host_name)
        bound = ",".join(each._replace(port=ports[each.name]).text for each in config.listeners)
        self._configuration.given["listeners"] = Setting(bound, given["listeners"].source)

    def _on_fault(self, reason: str) -> None:
        self._log.error("metadata store refused a broker", broker=self.node_id, reason=reason)

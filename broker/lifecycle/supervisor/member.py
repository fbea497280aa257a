"""One broker of a machine, as its supervisor has it: a process that is started, orders that it gets, and how it ended."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from lowtide.broker.config.broker_config import Setting, load_config
from lowtide.broker.lifecycle.supervisor.line import (
    Configuration,
    Hurry,
    Line,
    LoadReported,
    Message,
    PageAsked,
    PageGiven,
    PagesAsked,
    Serves,
    Stop,
)
from lowtide.broker.lifecycle.supervisor.restarts import Restarts
from lowtide.metadata.store import MetadataStoreError
from lowtide.metadata.store_server import ServedConnection, serve_store
from lowtide.runtime.child_process import ChildProcess, start_child
from lowtide.runtime.network import over_socket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.broker.lifecycle.supervisor.shares import Share
    from lowtide.metadata.store import MetadataStore
    from lowtide.replication.leader_balance import BrokerLoad

PAGE_TIMEOUT_S: Final = 3.0
"""How long a broker may take for its page of metrics: that of 10,000 partitions takes a second."""


class MemberListener(Protocol):
    """What a supervisor does when a broker says something."""

    def on_serves(self, member: Member) -> None:
        """It serves clients."""
        ...

    def on_pages_asked(self, member: Member, asked: PagesAsked) -> None:
        """It wants the pages of metrics of the others."""
        ...

    def on_load(self, load: BrokerLoad) -> None:
        """It says how busy it is."""
        ...


class Member:
    """One broker, of many lives. `live` runs one of them."""

    def __init__(
        self,
        share: Share,
        command: Sequence[str],
        configuration: Configuration,
        store: MetadataStore | None,
        log: Any,
        listener: MemberListener,
    ) -> None:
        """`command` starts the process; the numbers of its sockets are appended.

        `store` is what it is served, if anything is.
        """
        self._listener = listener
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._questions = 0
        self.node_id = share.node_id
        self.restarts = Restarts()
        self.address = ""
        """For clients, while it serves; empty otherwise."""
        self._command = command
        self._configuration = configuration
        self._store = store
        self._log = log
        self._process: ChildProcess | None = None
        self._line: Line | None = None
        self._stops = False

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        return None if self._process is None else self._process.pid

    async def live(self) -> int:
        """Run it until its process ends.

        Returns the exit code, minus the number of a signal. Errors: OSError where none can be started.
        What it holds in the store that is served ends with it, at once.
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
                with suppress(MetadataStoreError):  # They end by themselves then.
                    await connection.end_leases()

    def stop(self) -> None:
        """Have it stop in order, if it runs, and in a life that begins just now."""
        self._stops = True
        self.send(Stop())

    def hurry(self) -> None:
        """Have a stop wait for no client any more."""
        self.send(Hurry())

    def kill(self) -> None:
        """End its process at once, if there is one."""
        if self._process is not None:
            self._process.kill()

    def send(self, message: Message) -> None:
        """Say this to its process, if there is one that listens."""
        if self._line is not None:
            self._line.send(message)

    async def page(self, form: str) -> bytes:
        """Its page of metrics; empty where it doesn't serve, or doesn't answer soon."""
        if not self.address:
            return b""
        self._questions += 1
        number = self._questions
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pages[number] = asked
        self.send(PageAsked(number, form))
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                return await asked
        except TimeoutError:
            return b""
        finally:
            self._pages.pop(number, None)

    async def _listen(self, line: Line) -> None:
        """Follow what it says, until the line ends with its process."""
        while (message := await line.receive()) is not None:
            if isinstance(message, Serves):
                self.address = message.address
                self._keep_ports(message.ports)
                self._listener.on_serves(self)
            elif isinstance(message, PagesAsked):
                self._listener.on_pages_asked(self, message)
            elif isinstance(message, PageGiven):
                asked = self._pages.pop(message.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(message.page)
            elif isinstance(message, LoadReported):
                self._listener.on_load(message.load)

    def _keep_ports(self, ports: dict[str, int]) -> None:
        """A next life is reached where this one is."""
        given = self._configuration.given
        config = load_config(given=given, host_name=self._configuration.host_name)
        bound = ",".join(each._replace(port=ports[each.name]).text for each in config.listeners)
        self._configuration.given["listeners"] = Setting(bound, given["listeners"].source)

    def _on_fault(self, reason: str) -> None:
        self._log.error("a broker is refused by the metadata store", broker=self.node_id, reason=reason)

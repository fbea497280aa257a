"""The other process: a broker whose supervisor configures and stops it, and serves its metadata."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lowtide.broker.lifecycle.ports import Ports, real_ports
from lowtide.broker.lifecycle.supervisor.line import (
    Away,
    Configuration,
    Give,
    Hurry,
    Line,
    LoadReported,
    Message,
    PageAsked,
    PageGiven,
    PagesAsked,
    PagesGiven,
    Serves,
    Stop,
)
from lowtide.metadata.lease_keeper import ThreadLeaseKeeper
from lowtide.metadata.served_renewer import ServedRenewer
from lowtide.metadata.served_store import ServedStore
from lowtide.runtime.network import over_socket
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lowtide.metadata.store import OwnedStore
    from lowtide.replication.leader_balance import BrokerLoad, LeaderMove

PAGES_TIMEOUT_S: Final = 5.0
"""How long the supervisor may take for the pages of the others: longer than it waits for each."""


class SupervisedBroker:
    """The way of a broker to its supervisor. Made by `meet_supervisor`."""

    def __init__(self, line: Line, configuration: Configuration, served: tuple[socket.socket, ...]) -> None:
        self._line = line
        self._served = served
        self._away: tuple[int, ...] = ()
        self._asked: dict[int, asyncio.Future[Sequence[tuple[int, bytes]]]] = {}
        self._questions = 0
        self._tasks = TaskRegistry(lambda _name, _error: None)
        self.configuration = configuration

    def ports(self, loop: asyncio.AbstractEventLoop) -> Ports:
        """The outside world of the broker."""
        ports = replace(real_ports(loop, self.configuration.etcd), neighbours=self)
        if not self._served:
            return ports
        of_broker, of_keeper = self._served

        async def open_store(_log_directory: str) -> OwnedStore:
            return await ServedStore.open(of_broker)

        return replace(
            ports,
            open_store=open_store,
            make_lease_keeper=lambda times: ThreadLeaseKeeper(ports.clock, times, ServedRenewer(of_keeper)),
            shared_metadata=self.configuration.metadata,
        )

    async def follow(
        self,
        stop: Callable[[], None],
        hurry: Callable[[], None],
        page: Callable[[str], Awaitable[bytes]],
        give: Callable[[LeaderMove], None],
    ) -> None:
        """Do as the supervisor orders.

        One that has died is no reason to wait for clients: its successor waits for this process to end.
        `page` writes the broker's own page of metrics in a format, `give` has another broker lead a partition.
        """
        while (message := await self._line.receive()) is not None:
            if isinstance(message, Stop | Hurry):
                stop()
                if isinstance(message, Hurry):
                    hurry()
            elif isinstance(message, PageAsked):
                self._tasks.spawn(self._give_page(message, page), name="page for the supervisor")
            elif isinstance(message, Give):
                give(message.move)
            else:
                self._take(message)
        stop()
        hurry()

    async def _give_page(self, asked: PageAsked, page: Callable[[str], Awaitable[bytes]]) -> None:
        content = b""
        try:
            content = await page(asked.form)
        finally:
            self._line.send(PageGiven(asked.number, content))

    def _take(self, message: Message) -> None:
        if isinstance(message, Away):
            self._away = message.brokers
        elif isinstance(message, PagesGiven):
            asked = self._asked.pop(message.number, None)
            if asked is not None and not asked.done():
                asked.set_result(message.pages)

    @property
    def machine(self) -> Sequence[int]:
        """See `Neighbours`."""
        return self.configuration.brokers

    def away(self) -> Sequence[int]:
        """See `Neighbours`."""
        return self._away

    async def pages(self, form: str) -> Sequence[tuple[int, bytes]]:
        """See `Neighbours`."""
        self._questions += 1
        number = self._questions
        asked: asyncio.Future[Sequence[tuple[int, bytes]]] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._line.send(PagesAsked(number, form))
        try:
            async with asyncio.timeout(PAGES_TIMEOUT_S):
                return await asked
        except TimeoutError:
            return ()
        finally:
            self._asked.pop(number, None)

    def report(self, load: BrokerLoad) -> None:
        """See `Neighbours`."""
        self._line.send(LoadReported(load))

    def serves(self, address: str, ports: Mapping[str, int]) -> None:
        """Say that clients are served."""
        self._line.send(Serves(address, dict(ports)))


async def meet_supervisor(descriptors: list[int]) -> SupervisedBroker | None:
    """The supervisor behind these inherited sockets: the line, and where it serves metadata, the broker's and its lease keeper's.

    None where it has died already. Errors: OSError where they are none.
    """
    sockets = [socket.socket(fileno=number) for number in descriptors]
    for each in sockets:
        each.set_inheritable(False)
    line = Line(*await over_socket(sockets[0]))
    configuration = await line.receive()
    if not isinstance(configuration, Configuration):
        return None
    return SupervisedBroker(line, configuration, tuple(sockets[1:]))

"""The broker's process: its supervisor configures it, stops it, and serves its metadata."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lowtide.broker.lifecycle.ports import Ports, real_ports
from lowtide.broker.lifecycle.supervisor.line import (
    AwayBrokers,
    BrokerLoadReport,
    BrokerReady,
    Configuration,
    GiveLeadership,
    Hurry,
    Line,
    Message,
    PageRequest,
    PageResponse,
    PagesRequest,
    PagesResponse,
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
"""The time that the supervisor may take for the pages of the others: longer than it waits for each."""


class SupervisedBroker:
    """A broker's connection to its supervisor. Created by `meet_supervisor`."""

    def __init__(self, line: Line, configuration: Configuration, served: tuple[socket.socket, ...]) -> None:
        self._line = line
        self._served = served
        self._away: tuple[int, ...] = ()
        self._asked: dict[int, asyncio.Future[Sequence[tuple[int, bytes]]]] = {}
        self._questions = 0
        self._tasks = TaskRegistry(lambda _name, _error: None)
        self.configuration = configuration

    def ports(self, loop: asyncio.AbstractEventLoop) -> Ports:
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
        """Follows the supervisor's orders.

        If the supervisor dies, the broker stops without waiting for clients, because a new supervisor waits for this
        process. `page` returns the broker's own metrics page in a format, `give` moves the leadership of a partition.
        """
        while (message := await self._line.receive()) is not None:
            if isinstance(message, Stop | Hurry):
                stop()
                if isinstance(message, Hurry):
                    hurry()
            elif isinstance(message, PageRequest):
                self._tasks.spawn(self._give_page(message, page), name="page for the supervisor")
            elif isinstance(message, GiveLeadership):
                give(message.move)
            else:
                self._take(message)
        stop()
        hurry()

    async def _give_page(self, asked: PageRequest, page: Callable[[str], Awaitable[bytes]]) -> None:
        content = b""
        try:
            content = await page(asked.form)
        finally:
            self._line.send(PageResponse(asked.number, content))

    def _take(self, message: Message) -> None:
        if isinstance(message, AwayBrokers):
            self._away = message.brokers
        elif isinstance(message, PagesResponse):
            asked = self._asked.pop(message.number, None)
            if asked is not None and not asked.done():
                asked.set_result(message.pages)

    @property
    def machine(self) -> Sequence[int]:
        return self.configuration.brokers

    def away(self) -> Sequence[int]:
        return self._away

    async def pages(self, form: str) -> Sequence[tuple[int, bytes]]:
        self._questions += 1
        number = self._questions
        asked: asyncio.Future[Sequence[tuple[int, bytes]]] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._line.send(PagesRequest(number, form))
        try:
            async with asyncio.timeout(PAGES_TIMEOUT_S):
                return await asked
        except TimeoutError:
            return ()
        finally:
            self._asked.pop(number, None)

    def report(self, load: BrokerLoad) -> None:
        self._line.send(BrokerLoadReport(load))

    def serves(self, address: str, ports: Mapping[str, int]) -> None:
        self._line.send(BrokerReady(address, dict(ports)))


async def meet_supervisor(descriptors: list[int]) -> SupervisedBroker | None:
    """Connects to the supervisor through inherited sockets.

    They are the line and, with served metadata, one each for the broker and its lease keeper. Returns None if the
    supervisor is already dead. Errors: OSError if the descriptors are no sockets.
    """
    sockets = [socket.socket(fileno=number) for number in descriptors]
    for each in sockets:
        each.set_inheritable(False)
    line = Line(*await over_socket(sockets[0]))
    configuration = await line.receive()
    if not isinstance(configuration, Configuration):
        return None
    return SupervisedBroker(line, configuration, tuple(sockets[1:]))

"""The other process: a broker whose supervisor configures and stops it, and serves its metadata."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lowtide.broker.lifecycle.ports import Ports, real_ports
from lowtide.broker.lifecycle.supervisor.line import Configuration, Hurry, Line, Serves, Stop
from lowtide.metadata.lease_keeper import ThreadLeaseKeeper
from lowtide.metadata.served_renewer import ServedRenewer
from lowtide.metadata.served_store import ServedStore
from lowtide.runtime.network import over_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.metadata.store import OwnedStore


class SupervisedBroker:
    """The way of a broker to its supervisor. Made by `meet_supervisor`."""

    def __init__(self, line: Line, configuration: Configuration, served: tuple[socket.socket, ...]) -> None:
        self._line = line
        self._served = served
        self.configuration = configuration

    def ports(self, loop: asyncio.AbstractEventLoop) -> Ports:
        """The outside world of the broker."""
        ports = real_ports(loop, self.configuration.etcd)
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

    async def follow(self, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Do as the supervisor orders. One that has died is no reason to wait for clients: its successor waits for this process to end."""
        while isinstance(message := await self._line.receive(), Stop | Hurry):
            stop()
            if isinstance(message, Hurry):
                hurry()
        stop()
        hurry()

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

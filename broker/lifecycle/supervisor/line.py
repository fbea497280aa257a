"""What a supervisor and one of its brokers say to each other, over a socket pair that the broker inherits.

The supervisor sends the configuration first, then orders; the broker answers that it serves. Either learns of the
other's death by the end of the connection: a supervisor that is killed needs no signal handler to have its brokers
stop.

Frames are those of `metadata/served_frames`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from lowtide.broker.config.broker_config import Setting
from lowtide.metadata.etcd_address import EtcdAddress
from lowtide.metadata.served_frames import HEAD, length_of
from lowtide.replication.leader_balance import BrokerLoad, LeaderMove

MAX_FRAME_BYTES: Final = 256 << 20
"""Both ends are this program: a length above it can only be a fault of ours."""


class Configuration(msgspec.Struct, frozen=True, tag=True):
    """What the broker runs on.

    `metadata` names the store that the supervisor serves in messages; empty where it is in `etcd`.
    """

    given: dict[str, Setting]
    host_name: str
    metadata: str = ""
    etcd: EtcdAddress | None = None
    brokers: tuple[int, ...] = ()
    """All brokers of the machine."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop in order."""


class Hurry(msgspec.Struct, frozen=True, tag=True):
    """Stop, and wait for no client any more."""


class Serves(msgspec.Struct, frozen=True, tag=True):
    """The broker serves clients, at these ports by the names of its listeners."""

    address: str
    ports: dict[str, int]


class Away(msgspec.Struct, frozen=True, tag=True):
    """To each broker: these of the others don't serve now."""

    brokers: tuple[int, ...]


class PagesAsked(msgspec.Struct, frozen=True, tag=True):
    """From a broker: the pages of metrics of the others. `form` is the value of a `Format`."""

    number: int
    form: str


class PagesGiven(msgspec.Struct, frozen=True, tag=True):
    """The pages that were asked for under this number, of the brokers that answered."""

    number: int
    pages: tuple[tuple[int, bytes], ...]


class PageAsked(msgspec.Struct, frozen=True, tag=True):
    """To a broker: its own page of metrics."""

    number: int
    form: str


class PageGiven(msgspec.Struct, frozen=True, tag=True):
    """The page that was asked for under this number; empty where there is none."""

    number: int
    page: bytes


class LoadReported(msgspec.Struct, frozen=True, tag=True):
    """From a broker: how busy it is."""

    load: BrokerLoad


class Give(msgspec.Struct, frozen=True, tag=True):
    """To the leader of a partition: have another broker lead it."""

    move: LeaderMove


Message: TypeAlias = (
    Configuration | Stop | Hurry | Serves | Away | PagesAsked | PagesGiven | PageAsked | PageGiven | LoadReported | Give
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


class Line:
    """One end. Used from one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Have it sent; where the other end is gone, nothing is."""
        content = _encoder.encode(message)
        self._writer.write(HEAD.pack(len(content)) + content)

    async def receive(self) -> Message | None:
        """The next message; None at the end of the line."""
        try:
            head = await self._reader.readexactly(HEAD.size)
            return _decoder.decode(await self._reader.readexactly(length_of(head, MAX_FRAME_BYTES)))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        """End the line."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

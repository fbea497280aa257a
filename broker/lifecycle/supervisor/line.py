"""The protocol between a supervisor and one of its brokers, over a socket pair that the broker inherits.

The supervisor sends the configuration first, then orders. Each side detects the other's death by the end of the
connection, so brokers also stop when their supervisor is killed. Frames are those of `metadata/served_frames`.
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
"""Both ends are this program, so a longer frame is a bug."""


class Configuration(msgspec.Struct, frozen=True, tag=True):
    """The configuration of the broker.

    `metadata` names the store that the supervisor serves, for messages; empty if the metadata are in `etcd`.
    """

    given: dict[str, Setting]
    host_name: str
    metadata: str = ""
    etcd: EtcdAddress | None = None
    brokers: tuple[int, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Orders a graceful stop."""


class Hurry(msgspec.Struct, frozen=True, tag=True):
    """Orders a stop that does not wait for clients."""


class BrokerReady(msgspec.Struct, frozen=True, tag=True):
    """Reports that the broker serves clients, at these ports by listener name."""

    address: str
    ports: dict[str, int]


class AwayBrokers(msgspec.Struct, frozen=True, tag=True):
    """Tells each broker which others do not serve clients now."""

    brokers: tuple[int, ...]


class PagesRequest(msgspec.Struct, frozen=True, tag=True):
    """A broker's request for the metrics pages of the others. `form` is the value of a `Format`."""

    number: int
    form: str


class PagesResponse(msgspec.Struct, frozen=True, tag=True):
    """The response to it, from the brokers that answered."""

    number: int
    pages: tuple[tuple[int, bytes], ...]


class PageRequest(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's request for a broker's own metrics page."""

    number: int
    form: str


class PageResponse(msgspec.Struct, frozen=True, tag=True):
    """The response to it; empty if there is none."""

    number: int
    page: bytes


class BrokerLoadReport(msgspec.Struct, frozen=True, tag=True):
    """A broker's load."""

    load: BrokerLoad


class GiveLeadership(msgspec.Struct, frozen=True, tag=True):
    """Orders the leader of a partition to give its leadership to another broker."""

    move: LeaderMove


Order: TypeAlias = Configuration | Stop | Hurry | AwayBrokers | PagesResponse | PageRequest | GiveLeadership
Report: TypeAlias = BrokerReady | PagesRequest | PageResponse | BrokerLoadReport
Message: TypeAlias = Order | Report

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


class Line:
    """One end of the connection. Used from one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the other end is gone."""
        content = _encoder.encode(message)
        self._writer.write(HEAD.pack(len(content)) + content)

    async def receive(self) -> Message | None:
        """Returns the next message; None at the end of the connection."""
        try:
            head = await self._reader.readexactly(HEAD.size)
            return _decoder.decode(await self._reader.readexactly(length_of(head, MAX_FRAME_BYTES)))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

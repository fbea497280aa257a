"""A client that sends any bytes and always finds out whether the broker still serves it."""

from __future__ import annotations

import asyncio
import struct

from tests.free_ports import HOST

from .serving import ServeProcess

ANSWER_LIMIT_S = 120.0
"""The limit for any expected event. It is long because the machine may be busy."""

STUCK_S = 0.25
"""The time for a request that may wait (such as a fetch) before its connection is dropped."""

_LENGTH = struct.Struct(">i")
_PROBE = struct.Struct(">ihhih")
_FIRST_PROBE_ID = 0x7A000000


class Prober:
    """One connection, opened again whenever it is lost."""

    def __init__(self, broker: ServeProcess) -> None:
        self._broker = broker
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._probe_id = _FIRST_PROBE_ID
        self.closed = 0
        self.answered = 0
        self.stuck = 0

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the connection."""
        if self._reader is None or self._writer is None:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                self._reader, self._writer = await asyncio.open_connection(HOST, self._broker.port)
        return self._reader, self._writer

    def drop(self) -> None:
        """Ends the connection at once."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer.close()
        self._reader = self._writer = None

    async def exchange(self, frame: bytes) -> list[bytes]:
        """Sends a frame and an ApiVersions behind it.

        Returns the answers to the frame: none if the connection is closed. A connection without any answer is dropped.
        """
        reader, writer = await self.open()
        self._probe_id += 1
        answers: list[bytes] = []
        try:
            async with asyncio.timeout(STUCK_S):
                writer.write(_LENGTH.pack(len(frame)) + frame + self.probe(self._probe_id))
                while True:
                    answer = await read_frame(reader)
                    if answer[:4] == _LENGTH.pack(self._probe_id):
                        self.answered += 1
                        return answers
                    answers.append(answer)
        except TimeoutError:
            self.stuck += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed += 1
        self.drop()
        return answers

    async def send_and_probe(self, stream: bytes, *, limit_s: float) -> str:
        """Sends bytes unchanged, followed by an ApiVersions.

        Returns "answered" if that is answered, else "closed" or "stuck". A connection without its answer is dropped.
        """
        self._probe_id += 1
        wanted = _LENGTH.pack(self._probe_id)
        outcome = "closed"
        try:
            reader, writer = await self.open()
            async with asyncio.timeout(limit_s):
                writer.write(stream + self.probe(self._probe_id))
                while (await read_frame(reader))[:4] != wanted:
                    pass
                return "answered"
        except TimeoutError:
            outcome = "stuck"
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.drop()
        return outcome

    async def is_closed_after(self, stream: bytes, *, then_end: bool = False) -> bytes:
        """Sends bytes unchanged; with `then_end` closes our side.

        Returns the bytes before the broker closes. Errors: TimeoutError.
        """
        reader, writer = await self.open()
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                writer.write(stream)
                if then_end:
                    writer.write_eof()
                try:
                    return await reader.read()
                except ConnectionError:
                    return b""
        finally:
            self.drop()

    @staticmethod
    def probe(correlation_id: int) -> bytes:
        """ApiVersions v0 with its length."""
        return _PROBE.pack(10, 18, 0, correlation_id, -1)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame without its length. Errors: ConnectionError, IncompleteReadError."""
    return await reader.readexactly(_LENGTH.unpack(await reader.readexactly(4))[0])

"""A proxy that terminates TLS, in its own thread, for a broker without TLS.

Its certificate is for 127.0.0.1 and localhost, self-signed, and not secret: the key is beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

FOLDER = Path(__file__).parent / "certificates"
CERTIFICATE = FOLDER / "certificate.pem"
KEY = FOLDER / "key.pem"
PIECE_BYTES = 64 * 1024
STOP_TIMEOUT_S = 30


class TlsProxy:
    """Accepts TLS connections on a port of 127.0.0.1 and forwards the plain bytes to another one, within the `with`."""

    def __init__(self, port: int, target: int) -> None:
        self._port = port
        self._target = target
        self._open: list[asyncio.StreamWriter] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(STOP_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda *_: None)  # a client without TLS, or one that does not trust us
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=context)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._open += [writer, inner_writer]
            await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forwards until one side closes; then the other side is closed too."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

"""TLS between a socket and a connection: decrypts what the socket receives, encrypts what the connection writes.

To the socket this is a protocol; to the connection it is a transport. The connection exists and is counted as soon as
the socket is accepted. A handshake that does not end takes only a connection's place, until `lowtide.login.timeout.ms`.
Written bytes are encrypted in pieces: the next one when the socket has taken the last one. So a client that does not
read costs the memory of one piece.

Each connection uses the TLS context of the time when it was accepted. A renewed certificate needs neither a new
listener nor new connections.

Certificates are read in `runtime/server_tls`; `security/principal_mapping` maps their names to principals.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, ShownBy

PIECE_BYTES: Final = 96 * 1024
"""The most that is encrypted and sent at once: six full TLS records, and less than an allocator's threshold for mapping
memory. An answer whose parts are smaller together is encrypted as one piece."""

_NO_NAME: Final = "no rule of ssl.principal.mapping.rules matches the name of its certificate"

HANDSHAKE_BYTES: Final = 4096
"""The most that is received for one turn of a handshake, more than most clients send at once. It waits for the turn."""

FIRST_BYTES: Final = 8
"""How many of the client's first bytes are kept: a length, and the key and version of a request."""

Context = Callable[[], ssl.SSLContext]
Identify = Callable[[bytes | None], KafkaPrincipal | None]
"""Returns the principal of a client's certificate (DER; None without one), or None if the client is refused."""


class ListenerTls:
    """The TLS settings of a listener: the current context, and how certificates become principals."""

    __slots__ = ("context", "identify")

    def __init__(self, context: Context, identify: Identify) -> None:
        self.context = context
        self.identify = identify


class TlsConnection(asyncio.BufferedProtocol):
    """The layer of TLS of one connection."""

    def __init__(self, host: ConnectionHost, inner: Connection, settings: ListenerTls, *, identifies: bool) -> None:
        """`identifies`: the certificate names the client; otherwise `inner` asks for a SASL login."""
        self._host = host
        self._inner: Connection | None = inner
        self._settings = settings
        self._identifies = identifies
        self._transport: asyncio.Transport | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = settings.context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent: deque[memoryview] = deque()
        """The bytes still to be encrypted: some only while the socket is full."""
        self._first = b""
        """The first bytes that came: they show what a client speaks that doesn't speak TLS."""
        self._is_open = False
        self._is_paused = False
        self._is_full = False

    # ------------------------------------------------------------------ of the socket's transport
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Creates the connection of an accepted socket."""
        self._transport = cast("asyncio.Transport", transport)
        assert self._inner is not None
        self._host.logins[self._inner] = None
        self._inner.connection_made(cast("asyncio.BaseTransport", self))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the shared buffer for encrypted bytes, or a small part of it during the handshake."""
        return self._host.cipher_scratch if self._is_open else self._host.cipher_scratch[:HANDSHAKE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypts the received bytes. During the handshake, waits for a turn first."""
        self._incoming.write(self._host.cipher_scratch[:nbytes])
        if self._is_open:
            self._advance()
        elif self._transport is not None and not self._transport.is_closing():
            if len(self._first) < FIRST_BYTES:
                self._first += bytes(self._host.cipher_scratch[: min(nbytes, FIRST_BYTES)])
            self._transport.pause_reading()
            self._host.handshakes.enter(self)

    def take_turn(self) -> None:
        """Continues the handshake, then the reading."""
        self._advance()
        if self._transport is not None and not (self._is_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Handles the end of the client's bytes. The client may still read."""
        inner = self._inner
        if inner is None or not self._is_open:
            return False
        inner.eof_received()
        return True

    def pause_writing(self) -> None:
        """Stops encrypting: the socket is full."""
        self._is_full = True
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Continues: the socket is empty again."""
        self._is_full = False
        self._encrypt()
        if self._inner is not None and not self._is_full:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops all references, so that no cycle is left."""
        inner, self._inner = self._inner, None
        self._transport = None
        self._unsent.clear()
        self._host.handshakes.leave(self)
        if inner is not None:
            self._host.logins.pop(inner, None)
            inner.connection_lost(exc)

    # ------------------------------------------------------------------ decrypting
    def _advance(self) -> None:
        inner = self._inner
        if inner is None or inner.closed:
            return
        try:
            if self._is_open or self._shakes_hands(inner):
                self._read(inner)
        except ssl.SSLError as error:
            self._send()  # It tells the client why.
            reason = f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
            if not self._is_open:
                spoken = self._spoken_instead()
                reason = reason if spoken is None else f"{reason}: {spoken}"
                self._host.on_login(inner, reason)
            inner.refuse(reason)

    def _spoken_instead(self) -> str | None:
        """Returns the protocol that the client speaks instead of TLS; None if unknown."""
        from lowtide.broker.network.connection.foreign_protocols import instead_of_tls  # noqa: PLC0415  for clients that are refused

        return instead_of_tls(self._first, "SSL" if self._identifies else "SASL_SSL")

    def _shakes_hands(self, inner: Connection) -> bool:
        """Continues the handshake. Returns whether it has succeeded. Errors: SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        self._send()
        self._is_open = True
        if self._identifies:
            principal = self._settings.identify(self._tls.getpeercert(binary_form=True))
            if principal is None:
                self._host.on_login(inner, _NO_NAME)
                inner.close(_NO_NAME)
                return False
            inner.principal = principal
            if principal != ANONYMOUS:
                inner.shown_by = ShownBy.CERTIFICATE
            self._host.logins.pop(inner, None)
            self._host.on_login(inner, "")
        return True

    def _read(self, inner: Connection) -> None:
        """Decrypts into the connection's buffer, and lets it execute, until nothing is left. Errors: SSLError."""
        tls, ends, is_empty = self._tls, False, False
        while not (is_empty or ends or self._is_paused or inner.closed):
            buffer = inner.get_buffer(-1)
            filled, size = 0, len(buffer)
            try:
                while filled < size:
                    count = tls.read(size - filled, buffer[filled:])
                    if not count:
                        ends = True
                        break
                    filled += cast("int", count)
            except ssl.SSLWantReadError:
                is_empty = True
            except ssl.SSLZeroReturnError:
                ends = True
            if filled:
                inner.buffer_updated(filled)
        if self._outgoing.pending:
            self._send()
        if ends and not inner.closed:
            inner.eof_received()

    def _send(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    # ------------------------------------------------------------------ a transport for the connection
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns information about the socket."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the limits of the socket's transport, which count encrypted bytes."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Returns the bytes that the socket has not taken, encrypted or not."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + sum(map(len, self._unsent))

    def write(self, data: Any) -> None:
        """Encrypts and sends."""
        self.writelines([data])

    def writelines(self, parts: list[Any]) -> None:
        """Encrypts and sends parts in this order.

        The caller may reuse their memory if writing is not paused afterwards, else once it is resumed.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if len(parts) > 1 and sum(map(len, parts)) <= PIECE_BYTES:
            parts = [b"".join(parts)]
        self._unsent.extend(memoryview(part) for part in parts if len(part))
        if not self._is_full:
            self._encrypt()

    def _encrypt(self, *, all_of_it: bool = False) -> None:
        """Encrypts and sends until the socket is full."""
        unsent = self._unsent
        while unsent and (all_of_it or not self._is_full):
            part = unsent.popleft()
            if len(part) > PIECE_BYTES:
                unsent.appendleft(part[PIECE_BYTES:])
                part = part[:PIECE_BYTES]
            self._tls.write(part)
            self._send()

    def pause_reading(self) -> None:
        """Stops reading from the socket, and passing bytes to the connection."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continues to read, first the bytes that have arrived."""
        self._is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
            if self._incoming.pending or self._tls.pending():
                asyncio.get_running_loop().call_soon(self._advance)

    def is_closing(self) -> bool:
        """Returns whether it is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes when everything is sent, with TLS's close notice."""
        if self._transport is None:
            return
        self._encrypt(all_of_it=True)
        with suppress(ssl.SSLError):  # There was no handshake, or the client's close notice has not come yet.
            self._tls.unwrap()
        self._send()
        self._transport.close()

"""A blocking connection to one broker: what Spark's workers read and write by.

A worker of Spark is a plain process that does one thing at a time, so a socket and a deadline are all it needs: no event loop, no thread.
Requests may follow each other before the first is answered; brokers answer in their order. Received bytes go into one buffer that is
used again, so that an answer of megabytes is copied once, by the kernel: **records in an answer are views that the next `receive` ends**.

Deadlines are moments of the clock's `monotonic_ms`. Whoever gets `ConnectionFailed` opens another connection; this one is closed by then.
What to try again is decided elsewhere (`cluster.py`).
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from typing import Any, Final, NamedTuple, Self

from lowtide.admin.errors import UnsupportedVersionError
from lowtide.admin.exchange import ApiVersions, api_key_of, api_name, decode_response, encode_request
from lowtide.admin.opening import Ask, open_session
from lowtide.admin.settings import Address, ClientSettings
from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import Codec, codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.framing import FRAME_BYTES_MAX, FRAME_SIZE_BYTES, check_frame_size
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.protocol.schema import ApiMessage
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.random import system_random
from lowtide.runtime.tls import TlsError, client_context

__all__ = ["BrokerConnection", "ConnectionFailed", "UnsupportedVersionError"]

IN_FLIGHT_MAX: Final = 64
"""Requests that may wait for their answers. More than anybody sends; the broker would stop reading anyhow."""

RECEIVE_BYTES: Final = 64 * 1024
"""What the buffer begins with."""

LARGE_BYTES: Final = 16 << 20
"""A buffer above it is given back when an answer needs less than an eighth of it."""

_SIZE = struct.Struct(">i")


class ConnectionFailed(ConnectionError):  # noqa: N818 it says what happened, and is one by its parent
    """The connection couldn't be made, or is gone: one sentence that names the broker and why."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """Whether the broker may have done what the last request asked for."""


class _Waiting(NamedTuple):
    """A request on its way."""

    correlation_id: int
    flexible: bool
    codec: Codec[Any]


class BrokerConnection:
    """One open connection. Made by `open`; not to be shared between threads."""

    def __init__(self, address: Address, connected: socket.socket, settings: ClientSettings, clock: Clock) -> None:
        """Use a socket that is connected; `open` does the rest."""
        self.address = address
        self.closed = False
        self._socket = connected
        self._settings = settings
        self._clock = clock
        self._versions = ApiVersions({})
        self._usable_until_ms: int | None = None
        """When its authentication ends (KIP-368)."""
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._buffer = bytearray(RECEIVE_BYTES)

    @classmethod
    def open(cls, address: Address, settings: ClientSettings, deadline_ms: int, clock: Clock | None = None) -> Self:
        """Connect, with TLS and SASL where the settings say so, and ask which versions the broker speaks.

        It takes `connection_setup_timeout_ms` of the settings at most, and ends at the deadline.
        Errors: ConnectionFailed; where trying again changes nothing: TlsError, AuthenticationFailedError, BrokerAnsweredError.
        """
        clock = clock or SystemClock()
        until_ms = min(deadline_ms, clock.monotonic_ms() + settings.connection_setup_timeout_ms)
        connected = _connect(address, settings, max(until_ms - clock.monotonic_ms(), 1) / 1000)
        connection = cls(address, connected, settings, clock)
        try:
            connection._open_session(until_ms)
        except BaseException:
            connection.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waiting_count(self) -> int:
        """How many requests are not answered yet."""
        return len(self._waiting)

    def version(self, api_key: ApiKey, newest: int | None = None) -> int:
        """The newest version of an API that both sides speak, `newest` at most.

        Errors: UnsupportedVersionError, when there is none.
        """
        try:
            return self._versions.choose(API[api_key].request, at_most=newest)
        except UnsupportedVersionError as error:
            message = f"broker {self.address}: {error}"
            raise UnsupportedVersionError(message) from None

    def request(self, api_key: ApiKey, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> Any:
        """Send a request, in the newest version up to `newest` that both sides speak, and wait for its answer.

        Nothing else may be on its way. Errors: ConnectionFailed, UnsupportedVersionError.
        """
        assert not self._waiting, "answers come in the order of the requests"
        self.send(api_key, message, deadline_ms, newest)
        return self.receive(deadline_ms)

    def send(self, api_key: ApiKey, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> None:
        """Send a request whose answer a later `receive` gives. Records in it are sent as they are, without a copy.

        Blocks while the broker doesn't take it. Errors: ConnectionFailed, UnsupportedVersionError.
        """
        if self.closed:
            raise ConnectionFailed(f"the connection to {self.address} is closed", was_sent=False)
        if self._usable_until_ms is not None and self._clock.monotonic_ms() >= self._usable_until_ms and not self._waiting:
            raise self._failed("its authentication ends")
        assert len(self._waiting) < IN_FLIGHT_MAX, "somebody forgets to receive"
        version = self.version(api_key, newest)
        parts = codec_for(type(message), version).encode_parts(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        header = request_header(api_key, version, self._correlation_id, self._settings.client_id)
        flexible = response_header_is_flexible(api_key, version)
        self._waiting.append(_Waiting(self._correlation_id, flexible, codec_for(API[api_key].response, version)))
        size = len(header) + sum(map(len, parts))
        self._send([_SIZE.pack(size) + header, *parts], deadline_ms)

    def receive(self, deadline_ms: int) -> Any:
        """The answer to the oldest request that waits for one. It ends the views that the last answer had.

        Errors: ConnectionFailed, also when the deadline passes: an answer that comes later has nowhere to go.
        """
        if self.closed:
            raise ConnectionFailed(f"the connection to {self.address} is closed", was_sent=True)
        waiting = self._waiting[0]
        frame = self._receive_frame(deadline_ms)
        try:
            correlation_id, position = read_response_header(frame, 0, len(frame), flexible=waiting.flexible)
            answer = waiting.codec.decode(frame, position, len(frame))
        except ProtocolError as error:
            raise self._failed(f"its answer can't be read: {error}") from error
        if correlation_id != waiting.correlation_id:
            raise self._failed(f"it answers request {correlation_id} instead of {waiting.correlation_id}")
        self._waiting.popleft()
        return answer

    def fileno(self) -> int:
        """The socket's, to wait for several connections at once; -1 when it's closed."""
        return self._socket.fileno()

    @property
    def has_decrypted(self) -> bool:
        """Whether bytes of an answer are here that waiting for the socket doesn't tell of: TLS has read ahead."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def close(self) -> None:
        """Close it at once, whatever is on its way."""
        self.closed = True
        self._socket.close()

    # ------------------------------------------------------------------ bytes
    def _send(self, parts: list[Any], deadline_ms: int) -> None:
        """Errors: ConnectionFailed."""
        try:
            if len(parts) == 1 or self._settings.tls is not None:
                self._socket.settimeout(self._remaining_s(deadline_ms))
                self._socket.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
                return
            unsent = [memoryview(part) for part in parts if len(part)]
            while unsent:
                self._socket.settimeout(self._remaining_s(deadline_ms))
                count = self._socket.sendmsg(unsent[:IN_FLIGHT_MAX])
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.pop(0))
                if count:
                    unsent[0] = unsent[0][count:]
        except TimeoutError:
            raise self._failed("it didn't take a request in time") from None
        except OSError as error:
            raise self._failed(_reason(error)) from error

    def _receive_frame(self, deadline_ms: int) -> memoryview:
        """The next frame, in the buffer. Errors: ConnectionFailed."""
        (size,) = _SIZE.unpack(self._receive_exactly(FRAME_SIZE_BYTES, deadline_ms))
        try:
            check_frame_size(size, FRAME_BYTES_MAX)
        except ProtocolError as error:
            raise self._failed(f"its answer can't be read: {error}") from error
        return self._receive_exactly(size, deadline_ms)

    def _receive_exactly(self, size: int, deadline_ms: int) -> memoryview:
        """The next `size` bytes, in the buffer. Errors: ConnectionFailed."""
        if size > len(self._buffer) or (len(self._buffer) > LARGE_BYTES and RECEIVE_BYTES < size < len(self._buffer) // 8):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        received = 0
        try:
            while received < size:
                self._socket.settimeout(self._remaining_s(deadline_ms))
                count = self._socket.recv_into(view[received:])
                if not count:
                    raise self._failed("it closed the connection")
                received += count
        except TimeoutError:
            raise self._failed("it didn't answer in time") from None
        except ConnectionFailed:
            raise
        except OSError as error:
            raise self._failed(_reason(error)) from error
        return view

    def _remaining_s(self, deadline_ms: int) -> float:
        """Errors: TimeoutError, when nothing is left."""
        remaining_ms = deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0:
            raise TimeoutError
        return remaining_ms / 1000

    def _failed(self, reason: str) -> ConnectionFailed:
        """The connection is of no use any more, and what was on its way isn't waited for."""
        self.close()
        was_sent = bool(self._waiting)
        self._waiting.clear()
        return ConnectionFailed(f"broker {self.address}: {reason}", was_sent=was_sent)

    # ------------------------------------------------------------------ the first requests
    def _open_session(self, deadline_ms: int) -> None:
        """Learn the broker's versions, and log in where the settings say so.

        Errors: ConnectionFailed, AuthenticationFailedError, BrokerAnsweredError.
        """
        opening = open_session(self._settings, f"{system_random().getrandbits(128):x}")
        try:
            asked = next(opening)
            while True:
                asked = opening.send(self._ask(asked, deadline_ms))
        except StopIteration as ended:
            self._versions = ended.value.versions
            usable_ms = ended.value.usable_ms
            self._usable_until_ms = None if usable_ms is None else self._clock.monotonic_ms() + usable_ms

    def _ask(self, asked: Ask, deadline_ms: int) -> Any:
        """One of the first questions. Errors: ConnectionFailed."""
        self._correlation_id += 1
        self._send([encode_request(asked.request, asked.version, self._correlation_id, self._settings.client_id)], deadline_ms)
        frame = bytes(self._receive_frame(deadline_ms))
        try:
            _, answer = decode_response(type(asked.request), asked.version, frame)
        except ProtocolError as error:
            reason = f"its answer to {api_name(api_key_of(asked.request))} can't be read: {error}"
            raise self._failed(reason) from error
        return answer


def _connect(address: Address, settings: ClientSettings, timeout_s: float) -> socket.socket:
    """A connected socket, perhaps with TLS. Errors: ConnectionFailed, TlsError."""
    context = None if settings.tls is None else client_context(settings.tls)
    try:
        connected = socket.create_connection(address, timeout_s)
    except TimeoutError:
        raise ConnectionFailed(f"broker {address}: no connection within {timeout_s:.1f} s", was_sent=False) from None
    except OSError as error:
        raise ConnectionFailed(f"broker {address}: {_reason(error)}", was_sent=False) from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected if context is None else context.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise TlsError(f"broker {address}: its certificate isn't accepted: {error.verify_message}") from error
    except OSError as error:
        connected.close()
        reason = f"TLS failed: {_reason(error)}" if context is not None else _reason(error)
        raise ConnectionFailed(f"broker {address}: {reason}", was_sent=False) from error


def _reason(error: OSError) -> str:
    """A few words."""
    if isinstance(error, TimeoutError):
        return "it didn't answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror or str(error)).lower()

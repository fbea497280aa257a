"""One connection to one broker over a blocking socket: what Spark's workers read and write by.

No event loop, no thread.
`protocol.client.connection` decides what bytes mean; here are the socket and the waiting. Requests may follow each other before the first
is answered. **Records in an answer are views that the next `receive` ends**: an answer of megabytes is copied once, by
the kernel.

Deadlines are moments of the clock's `monotonic_ms`. After a ConnectionFailedError the connection is closed; what to try
again is decided elsewhere.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from lowtide.admin.errors import ConnectionFailedError, UnsupportedVersionError, error_of, no_token
from lowtide.protocol.client.connection import ClientConnection
from lowtide.protocol.client.opening import Ask, Opening
from lowtide.protocol.client.refused import ClientFailure
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.random import system_random
from lowtide.runtime.tls import TlsError, client_context

if TYPE_CHECKING:
    from lowtide.admin.settings import Address, ClientSettings
    from lowtide.protocol.schema import ApiMessage

PARTS_MAX: Final = 64
"""Parts of a request that one system call takes."""


class BlockingConnection:
    """One open connection. Opened by `open`; not to be shared between threads."""

    def __init__(self, address: Address, connected: socket.socket, settings: ClientSettings, clock: Clock) -> None:
        """Use a socket that is connected; `open` does the rest."""
        self.address = address
        self._socket = connected
        self._is_encrypted = settings.tls is not None
        self._clock = clock
        self._core: ClientConnection[None] = ClientConnection(settings.client_id, now_ms=clock.monotonic_ms())
        self._answers: deque[Any] = deque()
        """Received, and not yet returned by `receive`."""

    @classmethod
    def open(cls, address: Address, settings: ClientSettings, deadline_ms: int, clock: Clock | None = None) -> Self:
        """Connect, with TLS and SASL where the settings say so, and ask which versions the broker speaks.

        It takes `connection_setup_timeout_ms` of the settings at most, and ends at the deadline. Errors:
        ConnectionFailedError; where trying again changes nothing: TlsError, AuthenticationFailedError,
        BrokerAnsweredError.
        """
        clock = clock or SystemClock()
        sasl = _login(address, settings)
        until_ms = min(deadline_ms, clock.monotonic_ms() + settings.connection_setup_timeout_ms)
        connected = _connect(address, settings, max(until_ms - clock.monotonic_ms(), 1) / 1000)
        connection = cls(address, connected, settings, clock)
        try:
            connection._begin_session(Opening(sasl, f"{system_random().getrandbits(128):x}"), until_ms)
        except BaseException:
            connection.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self._core.closed

    @property
    def waiting_count(self) -> int:
        """How many answers `receive` has to return yet."""
        return self._core.waiting_count + len(self._answers)

    @property
    def has_received(self) -> bool:
        """Whether bytes of an answer are here that waiting for the socket doesn't see: they were read ahead."""
        return bool(self._answers) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def fileno(self) -> int:
        """The socket's, to wait for several connections at once; -1 when it's closed."""
        return self._socket.fileno()

    def version(self, request: type[ApiMessage], newest: int | None = None) -> int:
        """The newest version of a request that both sides speak, `newest` at most. Errors: UnsupportedVersionError."""
        version = self._core.versions.choose(request, at_most=newest)
        if isinstance(version, ClientFailure):
            message = f"broker {self.address}: {version.reason}"
            raise UnsupportedVersionError(message)
        return version

    def request(self, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> Any:
        """Send a request, in the newest version up to `newest` that both sides speak, and wait for its answer.

        Nothing else may be on its way. Errors: ConnectionFailedError, UnsupportedVersionError.
        """
        is_busy = self._core.waiting_count or self._answers
        assert not is_busy, "answers come in the order of the requests"
        self.send(message, deadline_ms, newest)
        return self.receive(deadline_ms)

    def send(self, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> None:
        """Send a request whose answer a later `receive` returns. Records in it are sent as they are, without a copy.

        Blocks while the broker doesn't take it. Errors: ConnectionFailedError, UnsupportedVersionError.
        """
        if self._core.closed:
            raise ConnectionFailedError(f"the connection to {self.address} is closed")
        if self._core.authentication_ends(self._clock.monotonic_ms()) and not self.waiting_count:
            raise self._failed("its authentication ends")
        self._send(message, self.version(type(message), newest), deadline_ms)

    def receive(self, deadline_ms: int) -> Any:
        """The answer to the oldest request that waits for one. It ends the views that the last answer had.

        Errors: ConnectionFailedError, also when the deadline passes: an answer that comes later has nowhere to go.
        """
        while not self._answers:
            if self._core.closed:
                raise ConnectionFailedError(f"the connection to {self.address} is closed", was_sent=True)
            if self._core.broken is not None:
                raise self._failed(self._core.broken)
            self._receive_some(deadline_ms)
        return self._answers.popleft()

    def close(self) -> None:
        """Close it at once, whatever is on its way."""
        self._core.close("it is closed")
        self._answers.clear()
        self._socket.close()

    # ------------------------------------------------------------------ bytes
    def _begin_session(self, opening: Opening, deadline_ms: int) -> None:
        """Learn the broker's versions, and log in.

        Errors: ConnectionFailedError, AuthenticationFailedError, BrokerAnsweredError, ...
        """
        step = opening.begin()
        while isinstance(step, Ask):
            self._send(step.request, step.version, deadline_ms)
            step = opening.on_answer(self.receive(deadline_ms))
        if isinstance(step, ClientFailure):
            raise error_of(step)
        self._core.begin_session(step, self._clock.monotonic_ms())

    def _send(self, message: ApiMessage, version: int, deadline_ms: int) -> None:
        """Errors: ConnectionFailedError."""
        parts: list[Any] = self._core.request_parts(message, version, None)
        try:
            if len(parts) == 1 or self._is_encrypted:
                self._socket.settimeout(self._remaining_s(deadline_ms))
                self._socket.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
                return
            unsent = [memoryview(part) for part in parts if len(part)]
            while unsent:
                self._socket.settimeout(self._remaining_s(deadline_ms))
                count = self._socket.sendmsg(unsent[:PARTS_MAX])
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.pop(0))
                if count:
                    unsent[0] = unsent[0][count:]
        except TimeoutError:
            raise self._failed("it didn't take a request in time") from None
        except OSError as error:
            raise self._failed(_reason(error)) from error

    def _receive_some(self, deadline_ms: int) -> None:
        """Take what arrives next. Errors: ConnectionFailedError."""
        try:
            self._socket.settimeout(self._remaining_s(deadline_ms))
            count = self._socket.recv_into(self._core.get_buffer())
        except TimeoutError:
            raise self._failed("it didn't answer in time") from None
        except OSError as error:
            raise self._failed(_reason(error)) from error
        if not count:
            raise self._failed("it closed the connection")
        for _, answer in self._core.receive(count):
            self._answers.append(answer)

    def _remaining_s(self, deadline_ms: int) -> float:
        """Errors: TimeoutError, when nothing is left."""
        remaining_ms = deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0:
            raise TimeoutError
        return remaining_ms / 1000

    def _failed(self, reason: str) -> ConnectionFailedError:
        """Close it: it is of no use any more, and what was on its way isn't waited for."""
        was_sent = self._core.in_session and self.waiting_count > 0
        self.close()
        return ConnectionFailedError(f"broker {self.address}: {reason}", was_sent=was_sent)


def _login(address: Address, settings: ClientSettings) -> ClientSaslSettings | None:
    """Who we say we are, with a token that holds now. Errors: ConnectionFailedError, AuthenticationFailedError."""
    if settings.sasl is None or settings.tokens is None:
        return settings.sasl
    from lowtide.runtime.token_source import TokenError, token_of  # noqa: PLC0415 - takes long, and few clients need it

    try:
        return replace(settings.sasl, token=token_of(settings.tokens))
    except TokenError as error:
        raise no_token(address, error, is_final=error.is_final) from None


def _connect(address: Address, settings: ClientSettings, timeout_s: float) -> socket.socket:
    """A connected socket, perhaps with TLS. Errors: ConnectionFailedError, TlsError."""
    context = None if settings.tls is None else client_context(settings.tls)
    try:
        connected = socket.create_connection(address, timeout_s)
    except TimeoutError:
        raise ConnectionFailedError(f"broker {address}: no connection within {timeout_s:.1f} s") from None
    except OSError as error:
        raise ConnectionFailedError(f"broker {address}: {_reason(error)}") from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected if context is None else context.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise TlsError(f"broker {address}: its certificate isn't accepted: {error.verify_message}") from error
    except OSError as error:
        connected.close()
        reason = f"TLS failed: {_reason(error)}" if context is not None else _reason(error)
        raise ConnectionFailedError(f"broker {address}: {reason}") from error


def _reason(error: OSError) -> str:
    """A few words."""
    if isinstance(error, TimeoutError):
        return "it didn't answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror or str(error)).lower()

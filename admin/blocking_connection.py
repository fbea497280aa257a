"""A connection to one broker over a blocking socket, for Spark's workers. It needs no event loop and no thread.

`protocol.client.connection` interprets the bytes. Several requests may be sent before the first answer. **The next
`receive` invalidates the records of an answer**, which are views: only the kernel copies them.

Deadlines are times of the clock's `monotonic_ms`. After a ConnectionFailedError the connection is closed; callers
decide about retries.
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
"""How many parts of a request one system call takes."""


class BlockingConnection:
    """An open connection, which one thread may use. `open` creates it."""

    def __init__(self, address: Address, connected: socket.socket, settings: ClientSettings, clock: Clock) -> None:
        """Takes a connected socket; `open` does the rest."""
        self.address = address
        self._socket = connected
        self._is_encrypted = settings.tls is not None
        self._clock = clock
        self._core: ClientConnection[None] = ClientConnection(settings.client_id, now_ms=clock.monotonic_ms())
        self._answers: deque[Any] = deque()
        """Answers that `receive` has not returned yet."""

    @classmethod
    def open(cls, address: Address, settings: ClientSettings, deadline_ms: int, clock: Clock | None = None) -> Self:
        """Connects, with TLS and SASL if the settings have them, and learns the broker's versions.

        Takes at most `connection_setup_timeout_ms`, and ends at the deadline. Errors: ConnectionFailedError; TlsError,
        AuthenticationFailedError and BrokerAnsweredError, for which a retry does not help.
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
        """Whether requests can no longer be sent."""
        return self._core.closed

    @property
    def waiting_count(self) -> int:
        """How many answers are still to be received."""
        return self._core.waiting_count + len(self._answers)

    @property
    def has_received(self) -> bool:
        """Whether bytes were read ahead, which a wait for the socket does not see."""
        return bool(self._answers) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def fileno(self) -> int:
        """Returns the socket's descriptor, to wait for several connections; -1 after `close`."""
        return self._socket.fileno()

    def version(self, request: type[ApiMessage], newest: int | None = None) -> int:
        """Returns the newest common version of a request, at most `newest`. Errors: UnsupportedVersionError."""
        version = self._core.versions.choose(request, at_most=newest)
        if isinstance(version, ClientFailure):
            raise UnsupportedVersionError(f"broker {self.address}: {version.reason}")
        return version

    def request(self, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> Any:
        """Sends a request in the newest common version up to `newest`, and returns its answer.

        No other request may be pending. Errors: ConnectionFailedError, UnsupportedVersionError.
        """
        is_busy = self._core.waiting_count or self._answers
        assert not is_busy, "answers come in the order of the requests"
        self.send(message, deadline_ms, newest)
        return self.receive(deadline_ms)

    def send(self, message: ApiMessage, deadline_ms: int, newest: int | None = None) -> None:
        """Sends a request whose answer a later `receive` returns. Does not copy records. Blocks until it is sent.

        Errors: ConnectionFailedError, UnsupportedVersionError.
        """
        if self._core.closed:
            raise ConnectionFailedError(f"the connection to {self.address} is closed")
        if self._core.authentication_ends(self._clock.monotonic_ms()) and not self.waiting_count:
            raise self._failed("its authentication expires")
        self._send(message, self.version(type(message), newest), deadline_ms)

    def receive(self, deadline_ms: int) -> Any:
        """Returns the answer to the oldest pending request. Invalidates the views of the last answer.

        Errors: ConnectionFailedError, also at the deadline: a later answer could not be assigned.
        """
        while not self._answers:
            if self._core.closed:
                raise ConnectionFailedError(f"the connection to {self.address} is closed", was_sent=True)
            if self._core.broken is not None:
                raise self._failed(self._core.broken)
            self._receive_some(deadline_ms)
        return self._answers.popleft()

    def close(self) -> None:
        """Closes it at once."""
        self._core.close("it is closed")
        self._answers.clear()
        self._socket.close()

    # ------------------------------------------------------------------ bytes
    def _begin_session(self, opening: Opening, deadline_ms: int) -> None:
        """Learns the broker's versions, and logs in. Errors: as `open`."""
        step = opening.begin()
        while isinstance(step, Ask):
            self._send(step.request, step.version, deadline_ms)
            step = opening.on_answer(self.receive(deadline_ms))
        if isinstance(step, ClientFailure):
            raise error_of(step)
        self._core.begin_session(step, self._clock.monotonic_ms())

    def _send(self, message: ApiMessage, version: int, deadline_ms: int) -> None:
        """Sends the request. Errors: ConnectionFailedError."""
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
            raise self._failed("it did not accept a request in time") from None
        except OSError as error:
            raise self._failed(_reason(error)) from error

    def _receive_some(self, deadline_ms: int) -> None:
        """Reads the next bytes. Errors: ConnectionFailedError."""
        try:
            self._socket.settimeout(self._remaining_s(deadline_ms))
            count = self._socket.recv_into(self._core.get_buffer())
        except TimeoutError:
            raise self._failed("it did not answer in time") from None
        except OSError as error:
            raise self._failed(_reason(error)) from error
        if not count:
            raise self._failed("it closed the connection")
        for _, answer in self._core.receive(count):
            self._answers.append(answer)

    def _remaining_s(self, deadline_ms: int) -> float:
        """Returns the time until the deadline. Errors: TimeoutError after it."""
        remaining_ms = deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0:
            raise TimeoutError
        return remaining_ms / 1000

    def _failed(self, reason: str) -> ConnectionFailedError:
        """Closes it, and returns the error."""
        was_sent = self._core.in_session and self.waiting_count > 0
        self.close()
        return ConnectionFailedError(f"broker {self.address}: {reason}", was_sent=was_sent)


def _login(address: Address, settings: ClientSettings) -> ClientSaslSettings | None:
    """Returns the SASL settings, with a valid token. Errors: ConnectionFailedError, AuthenticationFailedError."""
    if settings.sasl is None or settings.tokens is None:
        return settings.sasl
    from lowtide.runtime.token_source import TokenError, token_of  # noqa: PLC0415 - slow, and rarely needed

    try:
        return replace(settings.sasl, token=token_of(settings.tokens))
    except TokenError as error:
        raise no_token(address, error, is_final=error.is_final) from None


def _connect(address: Address, settings: ClientSettings, timeout_s: float) -> socket.socket:
    """Returns a connected socket, with TLS if the settings have it. Errors: ConnectionFailedError, TlsError."""
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
        raise TlsError(f"broker {address}: its certificate is not trusted: {error.verify_message}") from error
    except OSError as error:
        connected.close()
        reason = f"TLS failed: {_reason(error)}" if context is not None else _reason(error)
        raise ConnectionFailedError(f"broker {address}: {reason}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror or str(error)).lower()

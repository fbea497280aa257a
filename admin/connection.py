"""An asyncio connection to one broker: the socket and the waiting around `protocol.client.connection`.

A lost connection fails all pending requests. So does an answer that is late: later answers could not be assigned to
requests. A broker handles the requests of a connection one by one, so a request that it holds (a delete, a fetch)
delays those behind it; `brokers` gives such requests their own connections.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final, cast

from lowtide.admin.errors import AuthenticationFailedError, ConnectionFailedError, error_of
from lowtide.protocol.client.connection import NEVER_MS, ClientConnection
from lowtide.protocol.client.opening import Ask, Opening
from lowtide.protocol.client.refused import ClientFailure
from lowtide.runtime.network import connect

if TYPE_CHECKING:
    from lowtide.admin.settings import Address, ClientSettings
    from lowtide.protocol.client.versions import ApiVersions
    from lowtide.protocol.schema import ApiMessage
    from lowtide.runtime.clock import Clock

_NEVER_ANSWERED: Final = "it closed the connection without an answer: it may expect another security.protocol there"

_NO_TLS: Final = "it does not speak TLS there: security.protocol may be that of another listener"


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to one broker. `open_connection` opens it."""

    def __init__(self, address: Address, client_id: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._core: ClientConnection[asyncio.Future[Any]] = ClientConnection(
            client_id, now_ms=clock.monotonic_ms(), keeps_records=True
        )
        self._transport: asyncio.Transport | None = None

    @property
    def closed(self) -> bool:
        """Whether requests can no longer be sent."""
        return self._core.closed

    @property
    def versions(self) -> ApiVersions:
        """The versions that the broker supports."""
        return self._core.versions

    def is_usable(self, max_idle_ms: int) -> bool:
        """Returns whether it is open, its authentication is valid, and it was not idle for too long."""
        return self._core.is_usable(self._clock.monotonic_ms(), max_idle_ms)

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for received bytes."""
        return self._core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Completes the requests whose answers are complete."""
        for future, answer in self._core.receive(nbytes, self._clock.monotonic_ms()):
            if not future.done():
                future.set_result(answer)
        if self._core.broken is not None:
            self.close(self._core.broken)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails all pending requests."""
        closed = "it closed the connection" if self._core.in_session and self._core.has_answered else _NEVER_ANSWERED
        self.close(f"the connection was lost ({exc})" if exc is not None else closed, by_broker=True)
        self._transport = None

    # ------------------------------------------------------------------ requests
    def begin(self, request: ApiMessage, version: int, due_ms: int = NEVER_MS) -> asyncio.Future[Any]:
        """Sends a request. Returns a future for its answer, or for a ConnectionFailedError.

        Errors: ConnectionFailedError if it can't be sent.
        """
        reason = self._core.refusal()
        if reason is not None or self._transport is None:
            raise ConnectionFailedError(f"{self.address}: {reason or 'it closed the connection'}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._transport.write(self._core.request(request, version, future, due_ms))
        return future

    async def ask(self, request: ApiMessage, version: int, timeout_ms: int) -> Any:
        """Returns the answer, within `timeout_ms`. Callers may keep records in it.

        Errors: ConnectionFailedError; with `was_sent` the broker may have executed the request.
        """
        future = self.begin(request, version, self._clock.monotonic_ms() + timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            self.close(f"it did not answer within {timeout_ms} ms")
            raise ConnectionFailedError(f"{self.address}: {self._core.reason}", was_sent=True) from None

    async def begin_session(self, opening: Opening, timeout_ms: int) -> None:
        """Learns the broker's versions, and logs in if `opening` says so.

        Errors: ConnectionFailedError, AuthenticationFailedError, UnsupportedVersionError, BrokerAnsweredError.
        """
        step = opening.begin()
        while isinstance(step, Ask):
            step = opening.on_answer(await self.ask(step.request, step.version, timeout_ms))
        if isinstance(step, ClientFailure):
            raise error_of(step)
        self._core.begin_session(step, self._clock.monotonic_ms())

    def close_if_overdue(self) -> None:
        """Closes it if the oldest answer is late: a cancelled caller did not."""
        if self._clock.monotonic_ms() > self._core.due_ms:
            self.close("it did not answer in time")

    def close(self, reason: str, *, by_broker: bool = False) -> None:
        """Closes the connection; pending requests fail with the reason. `by_broker`: the broker closed it first."""
        for future in self._core.close(reason):
            if not future.done():
                future.set_exception(
                    ConnectionFailedError(f"{self.address}: {reason}", was_sent=True, hung_up=by_broker)
                )
                future.exception()  # Marks it as seen: the caller may have been cancelled.
        if self._transport is not None:
            self._transport.abort()


async def open_connection(
    address: Address, settings: ClientSettings, opening: Opening, clock: Clock, tls: ssl.SSLContext | None
) -> AsyncConnection:
    """Opens a connection and logs in, within `socket.connection.setup.timeout.ms`.

    Errors: ConnectionFailedError, AuthenticationFailedError, UnsupportedVersionError, BrokerAnsweredError.
    """
    connection = AsyncConnection(address, settings.client_id, clock)
    timeout_ms = settings.connection_setup_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await connect(lambda: connection, address.host, address.port, tls=tls)
            await connection.begin_session(opening, timeout_ms)
    except TimeoutError:
        connection.close("it took too long to open")
        raise ConnectionFailedError(f"{address}: no connection within {timeout_ms} ms") from None
    except ssl.SSLError as error:
        connection.close("no TLS")
        raise _tls_failure(address, error) from error
    except ConnectionFailedError:
        raise
    except OSError as error:
        connection.close("no connection")
        ended = tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError)
        raise ConnectionFailedError(f"{address}: {_NO_TLS if ended else _reason(error)}") from error
    except BaseException:
        connection.close("it couldn't be opened")
        raise
    return connection


def _tls_failure(address: Address, error: ssl.SSLError) -> Exception:
    """Returns a final error for an untrusted certificate; other TLS errors may come from a broker that is starting."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailedError(f"{address}: its certificate is not trusted: {error.verify_message}")
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
        return ConnectionFailedError(f"{address}: {_NO_TLS}")
    return ConnectionFailedError(f"{address}: no TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")


def _reason(error: OSError) -> str:
    """Returns the reason in a few words, without the addresses that asyncio adds."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__

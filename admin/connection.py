"""One connection to one broker, for asyncio: requests out, answers in their order.

Anything that isn't the protocol ends the connection; so does an answer that doesn't come in time, for then nobody knows what the next one
belongs to. A lost connection fails everything that waits on it. A broker works on one request of a connection after the other, so a
request that it lets wait (a delete, a fetch) holds up those behind it: `brokers.py` gives such requests connections of their own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lowtide.admin.errors import AuthenticationFailedError, ConnectionFailedError
from lowtide.admin.exchange import check_correlation, decode_response, encode_request
from lowtide.admin.opening import Opening, Session
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.framing import NEED_DATA, FrameDecoder
from lowtide.runtime.network import connect

if TYPE_CHECKING:
    from lowtide.admin.exchange import ApiVersions
    from lowtide.admin.settings import Address, ClientSettings
    from lowtide.protocol.schema import ApiMessage
    from lowtide.runtime.clock import Clock

IN_FLIGHT_MAX: Final = 1000
"""Requests that may wait for their answers on one connection."""

_NEVER_ANSWERED: Final = "it closed the connection without an answer: perhaps it expects another security.protocol there"

_NO_TLS: Final = "it doesn't speak TLS there: perhaps security.protocol is for another listener"


class _Waiting(NamedTuple):
    """One request on its way."""

    correlation_id: int
    request: type[ApiMessage]
    version: int
    future: asyncio.Future[Any]
    due_ms: int
    """When its answer is late (monotonic), also if the caller does not wait for it any more."""


class Connection(asyncio.Protocol):
    """See the module. Made by `open_connection`."""

    def __init__(self, address: Address, client_id: str, clock: Clock) -> None:
        self.address = address
        self.closed = False
        self.reason = ""
        self.used_at_ms = clock.monotonic_ms()
        self._client_id = client_id
        self._clock = clock
        self._session: Session | None = None
        self._has_answered = False
        """A request was answered that only those may send who are welcome."""
        self._usable_until_ms: int | None = None
        self._transport: asyncio.Transport | None = None
        self._received = FrameDecoder()
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0

    @property
    def versions(self) -> ApiVersions:
        """What the broker speaks."""
        assert self._session is not None
        return self._session.versions

    def is_usable(self, max_idle_ms: int) -> bool:
        """Whether a request may still be sent: it is open, its authentication holds, and it wasn't idle for so long that it may be dead."""
        now_ms = self._clock.monotonic_ms()
        if self.closed or (self._usable_until_ms is not None and now_ms >= self._usable_until_ms):
            return False
        return bool(self._waiting) or max_idle_ms < 0 or now_ms - self.used_at_ms < max_idle_ms

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand out every answer that is whole."""
        self._received.feed(data)
        try:
            while not self.closed and (payload := self._received.next_frame()) is not NEED_DATA:
                self._on_answer(payload)
        except ProtocolError as error:
            self.close(f"its answer can't be read: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        closed = "it closed the connection" if self._has_answered else _NEVER_ANSWERED
        self.close(f"the connection was lost ({exc})" if exc is not None else closed)
        self._transport = None

    # ------------------------------------------------------------------ requests
    async def ask(self, request: ApiMessage, version: int, timeout_ms: int) -> Any:
        """The answer, which has to come within `timeout_ms`; records in it may be kept.

        Errors: ConnectionFailedError; `was_sent` tells whether the broker may have done what was asked.
        """
        if self.closed or self._transport is None:
            raise ConnectionFailedError(f"{self.address}: {self.reason or 'it closed the connection'}")
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise ConnectionFailedError(f"{self.address}: {IN_FLIGHT_MAX} requests wait for their answers already")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        encoded = encode_request(request, version, self._correlation_id, self._client_id)
        due_ms = self._clock.monotonic_ms() + timeout_ms
        self._waiting.append(_Waiting(self._correlation_id, type(request), version, future, due_ms))
        self._transport.write(encoded)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            self.close(f"it did not answer within {timeout_ms} ms")
            raise ConnectionFailedError(f"{self.address}: {self.reason}", was_sent=True) from None

    async def run(self, opening: Opening, timeout_ms: int) -> None:
        """Let the questions of `opening` be answered. Errors: what it raises, and ConnectionFailedError."""
        answer = None
        while True:
            try:
                question = opening.send(answer)
            except StopIteration as ended:
                session = cast("Session", ended.value)
                break
            answer = await self.ask(question.request, question.version, timeout_ms)
        self._session = session
        if session.usable_ms is not None:
            self._usable_until_ms = self._clock.monotonic_ms() + session.usable_ms

    def close_if_overdue(self) -> None:
        """Close it if the oldest answer is late: a caller that was cancelled meanwhile did not close it."""
        if self._waiting and self._clock.monotonic_ms() > self._waiting[0].due_ms:
            self.close("it did not answer in time")

    def close(self, reason: str) -> None:
        """Close at once. Whoever waits gets a ConnectionFailedError with the reason."""
        if self.closed:
            return
        self.closed = True
        self.reason = reason
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(ConnectionFailedError(f"{self.address}: {reason}", was_sent=True))
                future.exception()  # Whoever waited may have been cancelled since; nobody needs to hear of it then.
        if self._transport is not None:
            self._transport.abort()

    def _on_answer(self, payload: bytes) -> None:
        """Errors: ProtocolError."""
        if not self._waiting:
            message = f"an answer of {len(payload)} bytes that nobody asked for"
            raise ProtocolError(message)
        waiting = self._waiting[0]
        correlation_id, answer = decode_response(waiting.request, waiting.version, payload)
        check_correlation(waiting.correlation_id, correlation_id)
        self._waiting.popleft()
        self.used_at_ms = self._clock.monotonic_ms()
        self._has_answered = self._session is not None
        if not waiting.future.done():
            waiting.future.set_result(answer)


async def open_connection(
    address: Address, settings: ClientSettings, opening: Opening, clock: Clock, tls: ssl.SSLContext | None
) -> Connection:
    """A connection on which requests may be sent, within `socket.connection.setup.timeout.ms`.

    Errors: ConnectionFailedError, AuthenticationFailedError, UnsupportedVersionError, BrokerAnsweredError.
    """
    connection = Connection(address, settings.client_id, clock)
    timeout_ms = settings.connection_setup_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await connect(lambda: connection, address.host, address.port, tls=tls)
            await connection.run(opening, timeout_ms)
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
    """A certificate that isn't trusted stays so; anything else of TLS may be a broker that is starting."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailedError(f"{address}: its certificate isn't trusted: {error.verify_message}")
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
        return ConnectionFailedError(f"{address}: {_NO_TLS}")
    return ConnectionFailedError(f"{address}: no TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")


def _reason(error: OSError) -> str:
    """A few words: asyncio puts several addresses, and the whole call, into one text."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__

"""Requests to other brokers: one connection for each broker and purpose, opened when it is first needed and again when it was lost.

Answers come in the order of the requests, each with its correlation id; anything else ends the connection. So does an answer that doesn't
come in time: what was asked may have been done or not. A lost connection fails everything that waits on it. After a failed attempt to
connect, or a connection that was lost before any answer, the next attempt waits, longer each time, up to a second.

A connection receives into one buffer of its own, which grows to the largest answer and is used again. Fields of an answer are copied out
of it, except `records`: these are views, valid until the next request on the same connection. Hence a Fetch has its connection to itself.

Stock asyncio only, so that it runs on the simulated loop too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import Codec, codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.framing import FRAME_BYTES_MAX, FRAME_SIZE_BYTES, check_frame_size, frame
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.runtime.network import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.records import Listener
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.tasks import TaskRegistry

CONNECT_TIMEOUT_MS: Final = 10_000
"""How long one attempt to connect may take: Kafka's `socket.connection.setup.timeout.ms`."""

BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 1000
"""Between attempts to connect: Kafka's `reconnect.backoff.ms` and `reconnect.backoff.max.ms` of clients."""

IN_FLIGHT_MAX: Final = 1000
"""Requests that may wait for their answers on one connection."""

UNSENT_BYTES_MAX: Final = 1 << 20
"""Beyond it a request waits until the peer has taken what was sent."""

RECEIVE_BYTES: Final = 64 * 1024
"""The receive buffer of a connection, until an answer is larger."""

_LARGE_BYTES: Final = 1 << 20
_SMALL_ANSWERS_UNTIL_SHRUNK: Final = 256
"""A receive buffer above `_LARGE_BYTES` is given back when so many answers in a row would have fitted into an eighth of it."""

_LENGTH = Struct(">i")


class PeerError(Exception):
    """The peer did not answer. `was_sent`: it may have got the request, and done what it asks."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class _Waiting:
    """One request on its way."""

    __slots__ = ("api_key", "codec", "correlation_id", "flexible", "future")

    def __init__(self, correlation_id: int, api_key: int, api_version: int) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.flexible = response_header_is_flexible(api_key, api_version)
        self.codec: Codec[Any] = codec_for(API[ApiKey(api_key)].response, api_version)
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class _Connection(asyncio.BufferedProtocol):
    """One connection to a peer."""

    def __init__(self, client_id: str, frame_bytes_max: int) -> None:
        self.closed = False
        self.reason = ""
        self.has_answered = False
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._buffer = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._small_answers = 0
        self._writable: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The free end of the receive buffer."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out every answer that is whole."""
        self._filled += nbytes
        position = 0
        try:
            while not self.closed and self._filled - position >= FRAME_SIZE_BYTES:
                size = check_frame_size(_LENGTH.unpack_from(self._buffer, position)[0], self._frame_bytes_max)
                end = position + FRAME_SIZE_BYTES + size
                if end > self._filled:
                    self._make_room(position, FRAME_SIZE_BYTES + size)
                    return
                self._on_answer(position + FRAME_SIZE_BYTES, end)
                position = end
        except ProtocolError as error:
            self.close(f"its answer can't be read: {error}")
            return
        self._make_room(position, FRAME_SIZE_BYTES)

    def eof_received(self) -> bool:
        """A peer that sends no more answers nothing any more."""
        self.close("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self.close(f"the connection was lost ({exc})" if exc is not None else "it closed the connection")
        self._transport = None

    def pause_writing(self) -> None:
        """The peer doesn't take what is sent: let further requests wait."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The peer has taken it."""
        self._release_writers()

    # ------------------------------------------------------------------ requests
    async def until_writable(self) -> None:
        """Return when a request may be sent, or the connection is closed."""
        while self._writable is not None:
            await asyncio.wait([self._writable])

    def send(self, api_key: int, api_version: int, message: ApiMessage) -> asyncio.Future[Any]:
        """Send a request. The future gives the answer; it fails with PeerError. Errors: PeerError when it wasn't sent."""
        if self.closed or self._transport is None:
            raise PeerError(self.reason or "it closed the connection", was_sent=False)
        if len(self._waiting) >= IN_FLIGHT_MAX:
            reason = f"{IN_FLIGHT_MAX} requests wait for their answers already"
            raise PeerError(reason, was_sent=False)
        alone = not any(waiting.api_key == ApiKey.FETCH for waiting in self._waiting) and (api_key != ApiKey.FETCH or not self._waiting)
        assert alone, "a Fetch must have its connection to itself, for its records are views of the receive buffer"
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        waiting = _Waiting(self._correlation_id, api_key, api_version)
        header = request_header(api_key, api_version, self._correlation_id, self._client_id)
        encoded = codec_for(type(message), api_version).encode(message)
        self._waiting.append(waiting)
        self._transport.write(frame(header, encoded))
        return waiting.future

    def close(self, reason: str) -> None:
        """Close at once. Whoever waits gets a PeerError with the reason."""
        if self.closed:
            return
        self.closed = True
        self.reason = reason
        self._release_writers()
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(PeerError(reason, was_sent=True))
                future.exception()  # Whoever waited may have been cancelled since; nobody needs to hear of it then.
        if self._transport is not None:
            self._transport.abort()

    def _on_answer(self, start: int, end: int) -> None:
        """The answer in `[start, end)` of the buffer. Errors: ProtocolError."""
        if not self._waiting:
            message = f"an answer of {end - start} bytes that nobody asked for"
            raise ProtocolError(message)
        waiting = self._waiting[0]
        correlation_id, position = read_response_header(self._buffer, start, end, flexible=waiting.flexible)
        if correlation_id != waiting.correlation_id:
            message = f"answer {correlation_id} instead of {waiting.correlation_id}"
            raise ProtocolError(message)
        answer = waiting.codec.decode(memoryview(self._buffer), position, end)
        self._waiting.popleft()
        self.has_answered = True
        if not waiting.future.done():
            waiting.future.set_result(answer)
        self._small_answers = self._small_answers + 1 if (end - start) * 8 < len(self._buffer) else 0

    def _make_room(self, position: int, needed: int) -> None:
        """Let the frame that begins at `position` begin the buffer, which then has room for `needed` bytes.

        The bytes of an answer just handed out stay where they are until more arrives, and as they are where the buffer is replaced.
        """
        count = self._filled - position
        shrink = len(self._buffer) > _LARGE_BYTES and self._small_answers >= _SMALL_ANSWERS_UNTIL_SHRUNK
        if needed > len(self._buffer) or (shrink and needed <= RECEIVE_BYTES and count <= RECEIVE_BYTES):
            buffer = bytearray(max(needed, RECEIVE_BYTES))
            buffer[:count] = memoryview(self._buffer)[position : self._filled]
            self._buffer = buffer
            self._small_answers = 0
        elif position and count:
            self._buffer[:count] = self._buffer[position : self._filled]
        self._filled = count

    def _release_writers(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)


class PeerClient:
    """Requests to one broker for one purpose. Made by `PeerClients`."""

    def __init__(self, broker_id: BrokerId, listener: Listener, purpose: str, peers: PeerClients) -> None:
        self.broker_id = broker_id
        self.listener = listener
        self._purpose = purpose
        self._peers = peers
        self._connection: _Connection | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._failure = ""
        self._backoff_ms = 0
        self._next_attempt_ms = 0
        self._closed = False

    async def request(self, api_key: int, api_version: int, message: ApiMessage, timeout_ms: int) -> Any:
        """The answer to `message`, which must come within `timeout_ms`, connecting included.

        Records in it are valid until the next request. A Fetch must be the only request on its way: give it a purpose of its own.
        Errors: PeerError; `was_sent` tells whether the peer may have done what was asked.
        """
        future: asyncio.Future[Any] | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connected()
                await connection.until_writable()
                future = connection.send(api_key, api_version, message)
                answer = await future
            if self._failure:
                self._on_answered()
            return answer
        except TimeoutError:
            reason = f"broker {self.broker_id} did not answer within {timeout_ms} ms"
            if future is None:
                reason = f"{reason}{f' ({self._failure})' if self._failure else ''}"
                raise PeerError(reason, was_sent=False) from None
            connection.close("it did not answer in time")
            raise PeerError(reason, was_sent=True) from None
        except asyncio.CancelledError:
            if future is not None and api_key == ApiKey.FETCH:
                connection.close("the fetch was given up")
            raise
        except PeerError as error:
            reason = f"broker {self.broker_id} at {self.listener.host}:{self.listener.port}: {error}"
            raise PeerError(reason, was_sent=error.was_sent) from error

    def close(self) -> None:
        """Close the connection; requests fail from now on."""
        self._closed = True
        self.disconnect("the connection is not needed any more")
        if self._attempt is not None:
            self._attempt.cancel()

    def disconnect(self, reason: str) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None

    async def _connected(self) -> _Connection:
        """The connection, opened if need be; whoever asks meanwhile waits for the same attempt. Errors: PeerError."""
        connection = self._connection
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise PeerError("the connection is not needed any more", was_sent=False)
        if connection is not None and not connection.has_answered:
            self._on_failed(connection.reason)
        self._connection = None
        if self._attempt is None:
            name = f"peer-{self.broker_id}-{self._purpose}"
            self._attempt = self._peers.tasks.spawn(self._connect(), name=name)
        await asyncio.wait([self._attempt])
        return self._open_connection()

    def _open_connection(self) -> _Connection:
        """What an attempt has brought. Errors: PeerError."""
        connection = self._connection
        if connection is None or connection.closed:
            raise PeerError(self._failure or "the connection was lost", was_sent=False)
        return connection

    async def _connect(self) -> None:
        """One attempt, after the back-off of the one before."""
        clock = self._peers.clock
        try:
            wait_ms = self._next_attempt_ms - clock.monotonic_ms()
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                    _, self._connection = await connect(self._make_connection, self.listener.host, self.listener.port)
            except OSError as error:  # TimeoutError is one.
                self._on_failed(str(error.strerror or error) or f"no connection within {CONNECT_TIMEOUT_MS} ms")
        finally:
            self._attempt = None

    def _make_connection(self) -> _Connection:
        return _Connection(f"{self._peers.client_id}-{self._purpose}", self._peers.frame_bytes_max)

    def _on_answered(self) -> None:
        """The first answer after a failure."""
        self._peers.log.info("broker is reached again", broker=self.broker_id, purpose=self._purpose)
        self._failure, self._backoff_ms = "", 0

    def _on_failed(self, reason: str) -> None:
        """Tell it once, not at each attempt."""
        if not self._failure:
            address = f"{self.listener.host}:{self.listener.port}"
            self._peers.log.warning("broker can't be reached", broker=self.broker_id, address=address, purpose=self._purpose, reason=reason)
        self._failure = reason
        self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MAX_MS) if self._backoff_ms else BACKOFF_FIRST_MS
        self._next_attempt_ms = self._peers.clock.monotonic_ms() + self._backoff_ms


class PeerClients:
    """All connections of a broker to others."""

    def __init__(
        self, clock: Clock, tasks: TaskRegistry, log: Any, *, client_id: str = "lowtide", frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        """`client_id` is how peers see us, followed by the purpose."""
        self.clock = clock
        self.tasks = tasks
        self.log = log
        self.client_id = client_id
        self.frame_bytes_max = frame_bytes_max
        self._clients: dict[tuple[BrokerId, str], PeerClient] = {}

    def client(self, broker_id: BrokerId, listener: Listener, purpose: str = "requests") -> PeerClient:
        """The one client for this broker and purpose. If the broker listens elsewhere now, the old connection is closed."""
        key = (broker_id, purpose)
        known = self._clients.get(key)
        if known is not None:
            if (known.listener.host, known.listener.port) == (listener.host, listener.port):
                return known
            known.close()
        made = self._clients[key] = PeerClient(broker_id, listener, purpose, self)
        return made

    def forget(self, broker_id: BrokerId, purpose: str | None = None) -> None:
        """Close the connections to a broker: one, or those of all purposes."""
        for key in [key for key in self._clients if key[0] == broker_id and purpose in (None, key[1])]:
            self._clients.pop(key).close()

    def forget_ended(self, old: MetadataImage, new: MetadataImage, changed: Iterable[BrokerId], purposes: Iterable[str]) -> None:
        """Close the connections of these purposes to brokers whose registration has ended.

        A machine that lost its power leaves connections behind on which nothing comes any more, not even an end.
        """
        for broker_id in changed:
            epoch = old.broker_epoch(broker_id)
            if epoch is not None and new.broker_epoch(broker_id) != epoch:
                for purpose in purposes:
                    self.forget(broker_id, purpose)

    def close(self) -> None:
        """Close all. Requests that wait fail with PeerError."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

"""Requests to other brokers: one connection for each broker and purpose, opened when it is needed.

`protocol.client.connection` interprets the bytes of a connection. If an answer does not arrive in time, the connection
is closed; the peer may have carried out the request or not. A lost connection fails all its waiting requests. After a
failed attempt to connect, or a connection that was lost before its first answer, the next attempt waits: longer each
time, up to a second.

The `records` of an answer are views of the connection's receive buffer, valid until the next request on this
connection. So Fetch requests have connections of their own.

Uses only plain asyncio, so that it also runs on the simulated loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from lowtide.broker.network.peer_login import NO_LOGIN, PeerLogin
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.connection import ClientConnection
from lowtide.protocol.client.opening import Ask, ExpectedBroker, Opening
from lowtide.protocol.client.refused import ClientFailure
from lowtide.protocol.client.retries import Backoff, Reachability
from lowtide.runtime.network import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.records import Listener
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.tasks import TaskRegistry

CONNECT_TIMEOUT_MS: Final = 10_000
"""The time limit of one attempt to connect: Kafka's `socket.connection.setup.timeout.ms`."""

BACKOFF: Final = Backoff(50, 1000)
"""The wait between attempts to connect: `reconnect.backoff.ms` and `reconnect.backoff.max.ms` of Kafka's clients."""

UNSENT_BYTES_MAX: Final = 1 << 20
"""With more unsent bytes, a request waits until the peer has taken the earlier ones."""


class PeerError(Exception):
    """The peer did not answer. `was_sent`: it may have received the request and carried it out."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class _Connection(asyncio.BufferedProtocol):
    """The socket of one connection to a peer. Its `core` interprets the bytes."""

    def __init__(self, client_id: str) -> None:
        self.core: ClientConnection[asyncio.Future[Any]] = ClientConnection(client_id)
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for received bytes."""
        return self.core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Completes the requests whose answers have arrived whole."""
        for future, answer in self.core.receive(nbytes):
            if not future.done():
                future.set_result(answer)
        if self.core.broken is not None:
            self.close(self.core.broken)

    def eof_received(self) -> bool:
        """Closes: a peer that has ended its side sends no more answers."""
        self.close("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails all waiting requests."""
        self.close(f"the connection was lost ({exc})" if exc is not None else "it closed the connection")
        self._transport = None

    def pause_writing(self) -> None:
        """Makes further requests wait: the peer does not read."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Continues with the waiting requests: the peer has read the earlier ones."""
        self._release_writers()

    # ------------------------------------------------------------------ requests
    @property
    def is_ready(self) -> bool:
        """Whether it is open, and the peer has taken earlier requests."""
        return self._writable is None and not self.core.closed

    async def until_writable(self) -> None:
        """Waits until a request may be sent, or the connection is closed."""
        while self._writable is not None:
            await asyncio.wait([self._writable])

    def send(
        self, api_version: int, message: ApiMessage, is_current: Callable[[], bool] | None = None
    ) -> asyncio.Future[Any]:
        """Sends a request, if `is_current` is true or missing. Returns the future of its answer.

        The future may fail with PeerError.
        Errors: PeerError if it was not sent.
        """
        reason = self.core.refusal()
        if is_current is not None and not is_current():
            reason = "the request is no longer current"
        if reason is not None or self._transport is None:
            raise PeerError(reason or "it closed the connection", was_sent=False)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._transport.write(self.core.request(message, api_version, future))
        return future

    async def log_in(self, opening: Opening, now_ms: int) -> None:
        """Logs in at the peer. Errors: PeerError."""
        step = opening.begin()
        while isinstance(step, Ask):
            step = opening.on_answer(await self.send(step.version, step.request))
        if isinstance(step, ClientFailure):
            raise PeerError(step.reason, was_sent=False)
        self.core.begin_session(step, now_ms)

    def close(self, reason: str) -> None:
        """Closes at once. Waiting requests fail with PeerError and the reason."""
        for future in self.core.close(reason):
            if not future.done():
                future.set_exception(PeerError(reason, was_sent=True))
                future.exception()  # Marks the error as seen: the request may have been cancelled.
        self._release_writers()
        if self._transport is not None:
            self._transport.abort()

    def _release_writers(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)


def _expire(future: asyncio.Future[Any]) -> None:
    """Fails a request whose answer has not arrived in time."""
    if not future.done():
        future.set_exception(TimeoutError())


class PeerClient:
    """Requests to one broker for one purpose. Created by `PeerClients`."""

    def __init__(self, broker_id: BrokerId, listener: Listener, purpose: str, peers: PeerClients) -> None:
        self.broker_id = broker_id
        self.listener = listener
        self._purpose = purpose
        self._peers = peers
        self._connection: _Connection | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._failure = ""
        self._reachability = Reachability(BACKOFF)
        self.closed = False
        """Whether it is not needed any more. Requests fail."""

    async def request(
        self,
        api_key: int,
        api_version: int,
        message: ApiMessage,
        timeout_ms: int,
        is_current: Callable[[], bool] | None = None,
    ) -> Any:
        """Sends a request and returns its answer. `timeout_ms` includes the time to connect.

        If `is_current` is no longer true when the connection is open, nothing is sent, which is a PeerError.
        Records in the answer are valid until the next request, so each Fetch needs a purpose of its own.
        Errors: PeerError; `was_sent` says whether the peer may have carried out the request.
        """
        future: asyncio.Future[Any] | None = None
        connection = self._connection
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_ms / 1000
        try:
            if connection is None or not connection.is_ready or self._login_ends(connection):
                async with asyncio.timeout_at(ends_at):
                    connection = await self._connected()
                    await connection.until_writable()
            future = connection.send(api_version, message, is_current)
            # `asyncio.timeout` would take a tenth of the CPU of a follower's fetch.
            expiry = loop.call_at(ends_at, _expire, future)
            try:
                answer = await future
            finally:
                expiry.cancel()
            if self._failure:
                self._on_answered()
            return answer
        except TimeoutError:
            reason = f"broker {self.broker_id} did not answer within {timeout_ms} ms"
            if future is None:
                reason = f"{reason}{f' ({self._failure})' if self._failure else ''}"
                raise PeerError(reason, was_sent=False) from None
            assert connection is not None, "it was sent"
            connection.close("it did not answer in time")
            raise PeerError(reason, was_sent=True) from None
        except asyncio.CancelledError:
            if future is not None and connection is not None and api_key == ApiKey.FETCH:
                connection.close("the fetch was given up")
            raise
        except PeerError as error:
            reason = f"broker {self.broker_id} at {self.listener.host}:{self.listener.port}: {error}"
            raise PeerError(reason, was_sent=error.was_sent) from error

    def close(self) -> None:
        """Closes the connection. Later requests fail."""
        self.closed = True
        self.disconnect("the connection is not needed any more")
        if self._attempt is not None:
            self._attempt.cancel()

    def disconnect(self, reason: str) -> None:
        """Closes the connection. The next request opens another one."""
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None

    async def _connected(self) -> _Connection:
        """Returns the connection, opened if necessary. All callers wait for the same attempt. Errors: PeerError."""
        connection = self._connection
        if connection is not None and self._login_ends(connection):
            connection.close("its login ends soon")
            connection = self._connection = None
        if connection is not None and not connection.core.closed:
            return connection
        if self.closed:
            raise PeerError("the connection is not needed any more", was_sent=False)
        if connection is not None and not connection.core.has_answered:
            self._on_failed(connection.core.reason)
        self._connection = None
        if self._attempt is None:
            name = f"peer-{self.broker_id}-{self._purpose}"
            self._attempt = self._peers.tasks.spawn(self._connect(), name=name)
        await asyncio.wait([self._attempt])
        return self._open_connection()

    def _login_ends(self, connection: _Connection) -> bool:
        """Returns whether another connection is needed: nothing waits on this one, and its login ends."""
        core = connection.core
        return not core.waiting_count and core.authentication_ends(self._peers.clock.monotonic_ms())

    def _open_connection(self) -> _Connection:
        """Returns the connection of one attempt. Errors: PeerError."""
        connection = self._connection
        if connection is None or connection.core.closed:
            raise PeerError(self._failure or "the connection was lost", was_sent=False)
        return connection

    async def _connect(self) -> None:
        """Connects once, after the back-off of the last attempt."""
        clock = self._peers.clock
        try:
            wait_ms = self._reachability.wait_ms(clock.monotonic_ms())
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                    self._connection = await self._opened()
            except PeerError as error:
                self._on_failed(str(error))
            except OSError as error:  # TimeoutError is one.
                self._on_failed(str(error.strerror or error) or f"no connection within {CONNECT_TIMEOUT_MS} ms")
        finally:
            self._attempt = None

    async def _opened(self) -> _Connection:
        """Returns an authenticated connection. Errors: PeerError, OSError."""
        login = self._peers.login
        tls, sasl = None if login.tls is None else login.tls(), await login.who()
        _, connection = await connect(self._make_connection, self.listener.host, self.listener.port, tls=tls)
        if sasl is not None:
            expected = ExpectedBroker(self._peers.cluster_id, self.broker_id) if self._peers.cluster_id else None
            try:
                await connection.log_in(Opening(sasl, login.nonce(), expected), self._peers.clock.monotonic_ms())
            except BaseException:
                connection.close("the login failed")
                raise
        return connection

    def _make_connection(self) -> _Connection:
        return _Connection(f"{self._peers.client_id}-{self._purpose}")

    def _on_answered(self) -> None:
        """Logs the first answer after a failure."""
        self._peers.log.info("broker is reached again", broker=self.broker_id, purpose=self._purpose)
        self._failure = ""
        self._reachability.on_success()

    def _on_failed(self, reason: str) -> None:
        """Logs the failure once, not at each attempt."""
        if not self._failure:
            address = f"{self.listener.host}:{self.listener.port}"
            self._peers.log.warning(
                "broker can't be reached", broker=self.broker_id, address=address, purpose=self._purpose, reason=reason
            )
        self._failure = reason
        self._reachability.on_failure(self._peers.clock.monotonic_ms())


class PeerClients:
    """All connections of a broker to others."""

    def __init__(  # noqa: PLR0913 - parts, each by its name
        self,
        clock: Clock,
        tasks: TaskRegistry,
        log: Any,
        *,
        client_id: str = "lowtide",
        cluster_id: str = "",
        listener_name: str = "",
        login: PeerLogin = NO_LOGIN,
    ) -> None:
        """Peers see `client_id` and the purpose as the client id.

        With a `cluster_id` a login checks first that it reaches the expected broker of this cluster (KIP-1242).
        `listener_name` is the listener of other brokers that this one uses. `login` authenticates each new connection.
        """
        self.clock = clock
        self.tasks = tasks
        self.log = log
        self.client_id = client_id
        self.cluster_id = cluster_id
        self.listener_name = listener_name
        self.login = login
        self._clients: dict[tuple[BrokerId, str], PeerClient] = {}

    def use(self, login: PeerLogin) -> None:
        """Authenticates new connections with another login. Open ones stay."""
        self.login = login

    def client_of(self, broker: BrokerImage, purpose: str = "requests") -> PeerClient:
        """Returns the only client for a broker and a purpose, at this broker's listener for brokers.

        A broker without a listener of that name is reached at its own listener for brokers: the setting can be changed
        one broker after the other. Source: Kafka, which also takes the name from its own setting.
        """
        return self.client(broker.broker_id, broker.listener(self.listener_name) or broker.inter_broker, purpose)

    def client(self, broker_id: BrokerId, listener: Listener, purpose: str = "requests") -> PeerClient:
        """Returns the only client for a broker and a purpose. If the address has changed, closes the old connection."""
        key = (broker_id, purpose)
        known = self._clients.get(key)
        if known is not None:
            if (known.listener.host, known.listener.port) == (listener.host, listener.port):
                return known
            known.close()
        made = self._clients[key] = PeerClient(broker_id, listener, purpose, self)
        return made

    def forget(self, broker_id: BrokerId, purpose: str | None = None) -> None:
        """Closes the connections to a broker, for one purpose or all."""
        for key in [key for key in self._clients if key[0] == broker_id and purpose in (None, key[1])]:
            self._clients.pop(key).close()

    def forget_ended(
        self, old: MetadataImage, new: MetadataImage, changed: Iterable[BrokerId], purposes: Iterable[str]
    ) -> None:
        """Closes the connections of these purposes to brokers whose registration has ended.

        After a power loss such a connection would stay open, because no end of it arrives.
        """
        for broker_id in changed:
            epoch = old.broker_epoch(broker_id)
            if epoch is not None and new.broker_epoch(broker_id) != epoch:
                for purpose in purposes:
                    self.forget(broker_id, purpose)

    def close(self) -> None:
        """Closes all connections. Waiting requests fail with PeerError."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

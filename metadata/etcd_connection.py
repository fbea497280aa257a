"""The connection to an etcd: one endpoint at a time, calls with deadlines, and the outcome of failed calls.

All calls go to one member. When a call to it fails, all others and its watches are aborted, and the next call goes to
the next endpoint. Otherwise a watch on a stopped member would stay silent for ever, while writes through another
continue.

Guards: only callers that know it is safe repeat a call (`store` does for reads). A failure tells whether the server may
have acted on the call, and denies that only where it is certain.

A user's password is exchanged for a token, which a member forgets when it restarts or after some time without use; then
a new one is requested. Client certificates need no token. The session pauses between attempts.

Sources: gRPC's keepalive guide; the errors of etcd's `rpctypes`; etcd's guide to role-based access.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import grpc
from grpc import aio

from lowtide.metadata import etcd_rpc_pb2 as rpc
from lowtide.metadata.errors import InconsistentClusterError, StoreWentBackError
from lowtide.metadata.etcd_address import NO_ACCESS, EtcdAccess
from lowtide.metadata.store import MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 1.0
"""How long connecting to an endpoint may take. One that refuses is given up at once."""

REQUEST_TIMEOUT_S: Final = 2.0
"""How long an answer may take: twice an election with etcd's defaults, and less than half a lease of 6 s, so that one
dead endpoint doesn't cost a broker its registration."""

PAGE_KEYS: Final = 160
"""Keys per page of a range: they fit into one message, however long they are."""

MAX_MESSAGE_BYTES: Final = 256 << 20

assert max(PAGE_KEYS, MAX_TRANSACTION_OPERATIONS) * MAX_TRANSACTION_BYTES < MAX_MESSAGE_BYTES

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),  # gRPC's own retry could apply a transaction twice.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Pings detect a silent member while only a watch is open. etcd refuses pings more often than every 5 s. All three
    # of the next options are needed to notice a stopped server.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # A new channel is a new connection, without the back-off of earlier ones.
)

CALL_METADATA: Final = (("hasleader", "true"),)
"""A member without a leader refuses at once and ends its watches, instead of being silent."""

_LINEARIZABLE: Final = frozenset({"KV/Range", "KV/Txn"})
"""Calls whose answers never have an older revision than one answered before they were sent."""

_NOT_FOR_US: Final = frozenset(
    {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED}
)

_SAID_BY_ETCD: Final = "etcdserver: "
_NO_LEADER: Final = "etcdserver: no leader"
_TOKEN_IS_OVER: Final = frozenset(
    {"etcdserver: invalid auth token", "etcdserver: revision of auth store is old", "etcdserver: user name is empty"}
)
"""With these errors etcd asks for a new token, before it does anything."""

_AUTH_FAILED: Final = "etcdserver: authentication failed, invalid user ID or password"
_AUTH_IS_OFF: Final = "etcdserver: authentication is not enabled"
_GIVEN_UP: Final = "the connection was given up"

_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""etcd refuses with these before it proposes anything to the cluster: too large, no such lease, no space, compacted."""


class Outcome(Enum):
    """The outcome of a failed call."""

    NOT_SENT = "not sent"
    """Nothing was applied, and another endpoint may succeed."""

    REFUSED = "refused"
    """Nothing was applied, and the next endpoint would refuse too."""

    UNKNOWN = "unknown"
    """It may have been applied, or may still be."""


class CallFailedError(Exception):
    """A call without an answer, or refused with `code`."""

    def __init__(self, message: str, outcome: Outcome, code: grpc.StatusCode | None = None, reason: str = "") -> None:
        """`message` names the endpoint; `reason` is etcd's text."""
        super().__init__(message)
        self.outcome = outcome
        self.code = code
        self.reason = reason


class _EndpointLink:
    """The connection to one endpoint."""

    __slots__ = ("channel", "endpoint", "is_checked", "number")

    def __init__(self, number: int, endpoint: str, access: EtcdAccess) -> None:
        self.number = number
        self.endpoint = endpoint
        self.is_checked = False
        credentials = tls_credentials(access)
        if credentials is None:
            self.channel = aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        else:
            self.channel = aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)


class Stream(Generic[T]):
    """A call with messages in both directions; ends with the connection."""

    __slots__ = ("_call", "_connection", "_link")

    def __init__(self, connection: EtcdConnection, link: _EndpointLink, call: Any) -> None:
        self._connection = connection
        self._link = link
        self._call = call

    async def write(self, request: Any) -> None:
        """Sends a message. Errors: CallFailedError.

        The deadline is needed because gRPC's write may never return on a stream that the server refuses at its start.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._call.write(request)
        except _BROKEN as error:
            await self._connection.on_broken(self._link, error)

    async def read(self, timeout_s: float | None = None) -> T:
        """Returns the next message. Errors: CallFailedError (also at the stream's end), InconsistentClusterError."""
        try:
            async with asyncio.timeout(timeout_s):
                message: T = await self._call.read()
        except _BROKEN as error:
            await self._connection.on_broken(self._link, error)
        if message is aio.EOF:
            await self._connection.on_broken(self._link, ConnectionError("the stream was ended"))
        self._connection.check_cluster(self._link.endpoint, message.header.cluster_id)  # type: ignore[attr-defined]
        return message


_BROKEN: Final = (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError, asyncio.CancelledError, TimeoutError)
"""What a call raises when its connection fails. A call that we abort is cancelled and looks like a cancelled task."""


class EtcdConnection:
    """Calls to an etcd with several endpoints. Used from one event loop."""

    def __init__(self, endpoints: Sequence[str], access: EtcdAccess = NO_ACCESS) -> None:
        assert endpoints, "an etcd has at least one endpoint"
        self.endpoints = tuple(endpoints)
        self._access = access
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._needs_token = bool(access.user)
        self._link = self._link_to(0)
        self._checking = asyncio.Lock()
        self._cluster_id = 0
        self._revision = 0
        self._raft_term = 0
        self._least_surplus: int | None = None
        self.connections = 1
        """The number of connections opened or attempted."""
        self.closed = False

    @property
    def attempts(self) -> int:
        """How often a repeatable call is tried: once per endpoint, and at the first again on a new connection."""
        return len(self.endpoints) + 1

    async def call(self, method: str, request: Any, response_type: type[T]) -> T:
        """Sends one call, once.

        Errors: CallFailedError; InconsistentClusterError if this endpoint belongs to another etcd, or to an earlier
        state.
        """
        link = await self._connected()
        seen, seen_term = self._revision, self._raft_term
        response = await self._call(link, method, request, response_type)
        self.check_cluster(link.endpoint, response.header.cluster_id)
        if method in _LINEARIZABLE:
            revision, term = response.header.revision, response.header.raft_term
            if revision < seen:
                raise StoreWentBackError(f"etcd at {link.endpoint} went back from revision {seen} to {revision}")
            if term < seen_term:
                raise StoreWentBackError(f"etcd at {link.endpoint} went back from raft term {seen_term} to {term}")
            self._revision, self._raft_term = max(self._revision, revision), max(self._raft_term, term)
        return response  # type: ignore[no-any-return]

    async def raft_surplus(self) -> int | None:
        """Returns the raft surplus, or None if only root may ask. Errors: CallFailedError."""
        return await self._raft_surplus(await self._connected())

    def require_raft_surplus(self, least: int) -> None:
        self._least_surplus = least
        self._link.is_checked = False

    async def _raft_surplus(self, link: _EndpointLink) -> int | None:
        try:
            response = await self._call(link, "Maintenance/Status", rpc.StatusRequest(), rpc.StatusResponse)
        except CallFailedError as error:
            if error.code in _NOT_FOR_US:
                return None
            raise
        self.check_cluster(link.endpoint, response.header.cluster_id)
        # The revision is read before the index, so the difference may be too large, but not too small.
        index = response.raft_applied_index or response.raft_index
        return int(index) - int(response.header.revision)

    async def _check_link(self, link: _EndpointLink) -> None:
        """Checks that a new connection leads to the same etcd. Errors: StoreWentBackError, CallFailedError."""
        try:
            surplus = await self._raft_surplus(link)
        except CallFailedError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise CallFailedError(str(error), Outcome.NOT_SENT) from error
            raise
        if surplus is not None and self._least_surplus is not None and surplus < self._least_surplus:
            raise StoreWentBackError(
                f"etcd at {link.endpoint} was restored from a snapshot: "
                f"its raft log has {-surplus} entries less than it has revisions"
            )
        link.is_checked = True

    async def _call(self, link: _EndpointLink, method: str, request: Any, response_type: type[T]) -> Any:
        try:
            return await link.channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,  # type: ignore[attr-defined]
            )(request, timeout=REQUEST_TIMEOUT_S, metadata=self._metadata())
        except _BROKEN as error:
            await self.on_broken(link, error)

    @asynccontextmanager
    async def stream(
        self, method: str, request_type: type[Any], response_type: type[T]
    ) -> AsyncGenerator[Stream[T], None]:
        """Opens a stream, which ends with the block. Errors: CallFailedError."""
        link = await self._connected()
        try:
            call = link.channel.stream_stream(
                f"/etcdserverpb.{method}",
                request_serializer=request_type.SerializeToString,
                response_deserializer=response_type.FromString,  # type: ignore[attr-defined]
            )(metadata=self._metadata())
        except _BROKEN as error:
            await self.on_broken(link, error)
        try:
            yield Stream(self, link, call)
        finally:
            call.cancel()

    def check_cluster(self, endpoint: str, cluster_id: int) -> None:
        """Checks that all endpoints belong to one etcd. Errors: InconsistentClusterError."""
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            message = f"{endpoint} belongs to etcd cluster {cluster_id:x}, the endpoints before to {self._cluster_id:x}"
            raise InconsistentClusterError(message)

    async def close(self) -> None:
        """Aborts everything and refuses further calls."""
        self.closed = True
        await self._link.channel.close()

    def forget_token(self) -> None:
        """Requests a new token before the next call: etcd may have forgotten this one."""
        self._token, self._needs_token = "", bool(self._access.user)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*CALL_METADATA, ("token", self._token)) if self._token else CALL_METADATA

    async def _connected(self) -> _EndpointLink:
        """Returns the established and authenticated connection."""
        link = await self._reached()
        if self._needs_token:
            async with self._authenticating:
                if self._needs_token:
                    await self._authenticate(link)
        if self._least_surplus is not None and not link.is_checked:
            async with self._checking:
                if not link.is_checked:
                    await self._check_link(link)
        return link

    async def _authenticate(self, link: _EndpointLink) -> None:
        """Gets a token. Errors: CallFailedError, marked as not sent for the call that needs it."""
        self._token = ""
        request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
        try:
            response = await self._call(link, "Auth/Authenticate", request, rpc.AuthenticateResponse)
        except CallFailedError as error:
            if error.reason == _AUTH_IS_OFF:  # If it is switched on later, the first refused call asks again.
                self._needs_token = False
                return
            if error.outcome is Outcome.UNKNOWN:
                raise CallFailedError(str(error), Outcome.NOT_SENT) from error
            raise
        self._token, self._needs_token = response.token, False

    async def _reached(self) -> _EndpointLink:
        """Returns the established connection. Until then nothing was sent, unlike after a deadline during a call."""
        link = self._link
        reason = f"not reached {'with' if self._access.ca else 'without'} TLS"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while (
                    state := link.channel.get_state(try_to_connect=True)
                ) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    if state is grpc.ChannelConnectivity.READY:
                        return link
                    await link.channel.wait_for_state_change(state)
        except TimeoutError:
            reason += " in time"
        except (aio.UsageError, RuntimeError):
            reason = _GIVEN_UP
        await self._leave(link)
        raise CallFailedError(f"etcd at {link.endpoint}: {reason}", Outcome.NOT_SENT)

    async def on_broken(self, link: _EndpointLink, error: BaseException) -> NoReturn:
        """Reports the outcome of a call that raised `error`, and switches to the next endpoint.

        Errors: CallFailedError, CancelledError.
        """
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise error
        failure = _failure(link.endpoint, error)
        if failure.reason in _TOKEN_IS_OVER and self._access.user:
            self.forget_token()
            failure = CallFailedError(str(failure), Outcome.NOT_SENT, failure.code)
        if failure.outcome is not Outcome.REFUSED:
            await self._leave(link)
        raise failure from error

    async def _leave(self, link: _EndpointLink) -> None:
        """Switches to the next endpoint, unless another call already did."""
        if link is self._link and not self.closed:
            self._link = self._link_to((link.number + 1) % len(self.endpoints))
            self.connections += 1
            await link.channel.close()

    def _link_to(self, number: int) -> _EndpointLink:
        return _EndpointLink(number, self.endpoints[number], self._access)


def tls_credentials(access: EtcdAccess) -> grpc.ChannelCredentials | None:
    """Returns the credentials for TLS; None without TLS."""
    if not access.ca:
        return None
    return grpc.ssl_channel_credentials(access.ca, access.key or None, access.certificate or None)


def _failure(endpoint: str, error: BaseException) -> CallFailedError:
    place = f"etcd at {endpoint}"
    if not isinstance(error, aio.AioRpcError):
        reason = {TimeoutError: "no answer in time", asyncio.CancelledError: _GIVEN_UP}.get(type(error), str(error))
        return CallFailedError(f"{place}: {reason}", Outcome.UNKNOWN)
    code, details = error.code(), error.details() or error.code().name
    if details == _AUTH_FAILED or details in _TOKEN_IS_OVER:
        return CallFailedError(f"{place}: {details}", Outcome.REFUSED, grpc.StatusCode.UNAUTHENTICATED, details)
    if details.startswith(_SAID_BY_ETCD) and code in _REFUSALS:
        return CallFailedError(f"{place}: {details}", Outcome.REFUSED, code, details)
    return CallFailedError(f"{place}: {details}", Outcome.NOT_SENT if details == _NO_LEADER else Outcome.UNKNOWN, code)

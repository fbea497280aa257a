"""The way to an etcd: one endpoint at a time, calls with deadlines, and what became of those that failed.

Everything goes through one member: when a call to it fails, all that is under way there is given up, watches too, and
what comes next goes to the next endpoint. Otherwise a watch on a member that was stopped would stay silent for ever,
while writes through another one continue.

Guards: a call is repeated only by who knows that it may be (`store` does for reads); a failure says whether the server
may have acted on the call, and says no only where that is certain.

A user's password gets a token from etcd, which a member forgets when it restarts, or when it wasn't used there for a
while; then another one is asked for. Client certificates need none of that.

Does not do: pauses between attempts (the session makes them).
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
"""How long an endpoint may take to be connected. One that refuses is given up at once."""

REQUEST_TIMEOUT_S: Final = 2.0
"""How long a member may take for an answer. Twice that an election takes with etcd's defaults, and less than half a lease of 6 s: one dead
endpoint, however it died, doesn't cost a broker its registration."""

PAGE_KEYS: Final = 160
"""Keys that are read at once, so that they fit into one message, however long they are."""

MAX_MESSAGE_BYTES: Final = 256 << 20

assert max(PAGE_KEYS, MAX_TRANSACTION_OPERATIONS) * MAX_TRANSACTION_BYTES < MAX_MESSAGE_BYTES

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),  # A transaction that gRPC sends again by itself may be applied twice.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Pings find a member that is silent while only a watch is open. More often than every 5 s etcd refuses; all three
    # of the next are needed, for a stopped server isn't noticed otherwise.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # A new channel is a new connection, without the back-off of earlier ones.
)

CALL_METADATA: Final = (("hasleader", "true"),)
"""A member without a leader refuses at once, and ends its watches, instead of being silent."""

_LINEARIZABLE: Final = frozenset({"KV/Range", "KV/Txn"})
"""Calls whose answers never have a revision below one that was answered before they were sent."""

_NOT_FOR_US: Final = frozenset(
    {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED}
)

_SAID_BY_ETCD: Final = "etcdserver: "
_NO_LEADER: Final = "etcdserver: no leader"
_TOKEN_IS_OVER: Final = frozenset(
    {"etcdserver: invalid auth token", "etcdserver: revision of auth store is old", "etcdserver: user name is empty"}
)
"""With these etcd says, before anything is done, that a new token is needed."""

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
"""With these etcd says no before anything is proposed to the cluster: too large, no such lease, no space left, compacted."""


class Outcome(Enum):
    """What became of a call that failed."""

    NOT_SENT = "not sent"
    """Nothing was applied, and another endpoint may do better."""

    REFUSED = "refused"
    """Nothing was applied, and the next endpoint would say the same."""

    UNKNOWN = "unknown"
    """It may have been applied, or may yet be."""


class CallFailedError(Exception):
    """A call had no answer, or was refused. `code` is that of a refusal."""

    def __init__(self, message: str, outcome: Outcome, code: grpc.StatusCode | None = None, reason: str = "") -> None:
        """`message` names the endpoint; `reason` is what etcd said."""
        super().__init__(message)
        self.outcome = outcome
        self.code = code
        self.reason = reason


class _Link:
    """The connection to one endpoint, and the open streams over it."""

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

    def __init__(self, connection: EtcdConnection, link: _Link, call: Any) -> None:
        """Wrap an open `call`."""
        self._connection = connection
        self._link = link
        self._call = call

    async def write(self, request: Any) -> None:
        """Send a message. Errors: CallFailedError.

        With a deadline, though nothing is waited for but the connection: on a stream that the server refuses while it
        begins, gRPC's write may never return.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._call.write(request)
        except _BROKEN as error:
            await self._connection.on_broken(self._link, error)

    async def read(self, timeout_s: float | None = None) -> T:
        """The next message. Errors: CallFailedError, also when the server ends the stream; InconsistentClusterError."""
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
"""What a call raises when its connection fails; a call that is given up by us is cancelled, and so looks like a task that is."""


class EtcdConnection:
    """Calls to an etcd of several endpoints. Used from one event loop."""

    def __init__(self, endpoints: Sequence[str], access: EtcdAccess = NO_ACCESS) -> None:
        """Connects when it is first used."""
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
        """The number of connections that were opened or attempted."""
        self.closed = False

    @property
    def attempts(self) -> int:
        """How often a call that may be repeated is tried: once at each endpoint, and again at the first on a new connection."""
        return len(self.endpoints) + 1

    async def call(self, method: str, request: Any, response_type: type[T]) -> T:
        """One call, once.

        Errors: CallFailedError; InconsistentClusterError when this endpoint is of another etcd, or of an earlier one.
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
        """See `MetadataStore.raft_surplus`.

        None where the user may not ask: some releases keep the question for the user root.
        Errors: CallFailedError.
        """
        return await self._raft_surplus(await self._connected())

    def require_raft_surplus(self, least: int) -> None:
        """See `MetadataStore.require_raft_surplus`."""
        self._least_surplus = least
        self._link.is_checked = False

    async def _raft_surplus(self, link: _Link) -> int | None:
        try:
            response = await self._call(link, "Maintenance/Status", rpc.StatusRequest(), rpc.StatusResponse)
        except CallFailedError as error:
            if error.code in _NOT_FOR_US:
                return None
            raise
        self.check_cluster(link.endpoint, response.header.cluster_id)
        # The revision is read before the index, and is of what was applied: the difference may be too large, and isn't
        # too small.
        index = response.raft_applied_index or response.raft_index
        return int(index) - int(response.header.revision)

    async def _check_link(self, link: _Link) -> None:
        """Before the first call over a connection: is it the etcd that it was?

        Errors: StoreWentBackError; CallFailedError, not sent.
        """
        try:
            surplus = await self._raft_surplus(link)
        except CallFailedError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise CallFailedError(str(error), Outcome.NOT_SENT) from error
            raise
        if surplus is not None and self._least_surplus is not None and surplus < self._least_surplus:
            raise StoreWentBackError(
                f"etcd at {link.endpoint} was restored from a snapshot: its raft log has {-surplus} entries less than it has revisions"
            )
        link.is_checked = True

    async def _call(self, link: _Link, method: str, request: Any, response_type: type[T]) -> Any:
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
        """A stream, which ends with the block. Errors: CallFailedError."""
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
        """All endpoints must be of one etcd. Errors: InconsistentClusterError."""
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            message = f"{endpoint} belongs to etcd cluster {cluster_id:x}, the endpoints before to {self._cluster_id:x}"
            raise InconsistentClusterError(message)

    async def close(self) -> None:
        """Give up everything that is under way, and refuse what comes."""
        self.closed = True
        await self._link.channel.close()

    def forget_token(self) -> None:
        """Have another one asked for before the next call: etcd may have forgotten it."""
        self._token, self._needs_token = "", bool(self._access.user)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*CALL_METADATA, ("token", self._token)) if self._token else CALL_METADATA

    async def _connected(self) -> _Link:
        """The connection, once it stands and etcd knows who we are."""
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

    async def _authenticate(self, link: _Link) -> None:
        """Get a token. Errors: CallFailedError, of which the call that needs it knows that it wasn't sent."""
        self._token = ""
        request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
        try:
            response = await self._call(link, "Auth/Authenticate", request, rpc.AuthenticateResponse)
        except CallFailedError as error:
            if (
                error.reason == _AUTH_IS_OFF
            ):  # It may be switched on any time; then the first call that it refuses asks again.
                self._needs_token = False
                return
            if error.outcome is Outcome.UNKNOWN:
                raise CallFailedError(str(error), Outcome.NOT_SENT) from error
            raise
        self._token, self._needs_token = response.token, False

    async def _reached(self) -> _Link:
        """The connection, once it stands.

        Until then nothing was sent, which a deadline in the midst of a call can't say.
        """
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

    async def on_broken(self, link: _Link, error: BaseException) -> NoReturn:
        """Tell what became of a call that raised `error`, and turn to the next endpoint.

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

    async def _leave(self, link: _Link) -> None:
        """Turn to the next endpoint, unless another call did already."""
        if link is self._link and not self.closed:
            self._link = self._link_to((link.number + 1) % len(self.endpoints))
            self.connections += 1
            await link.channel.close()

    def _link_to(self, number: int) -> _Link:
        return _Link(number, self.endpoints[number], self._access)


def tls_credentials(access: EtcdAccess) -> grpc.ChannelCredentials | None:
    """What TLS is spoken with; None where it isn't."""
    return (
        grpc.ssl_channel_credentials(access.ca, access.key or None, access.certificate or None) if access.ca else None
    )


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

"""The metadata store of a cluster: etcd v3, with our own thin client on `grpc.aio`.

Guards: a transaction is sent once. If its answer is lost, the caller gets AmbiguousError and decides; only reads and
calls that are safe to repeat are repeated, at the next endpoint. All reads are linearizable. After a lost connection a
watch continues at the revision after the last one it delivered, so nothing is missed or repeated; if etcd has compacted
that revision, the watcher gets an error.

`writer` finds out what an ambiguous transaction did, `session` pauses between attempts. etcd compacts by itself
(`--auto-compaction-retention`). Progress notifications aren't used: etcd has sent wrong ones.

Only one event loop of a process may use it, because gRPC can't serve two. Sources: etcd's API guide, its `rpc.proto`;
Jepsen's reports on etcd and on its Java client, which executed transactions twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from lowtide.metadata import etcd_messages as messages
from lowtide.metadata import etcd_rpc_pb2 as rpc
from lowtide.metadata.etcd_address import NO_ACCESS
from lowtide.metadata.etcd_connection import PAGE_KEYS, REQUEST_TIMEOUT_S, CallFailedError, EtcdConnection, Outcome
from lowtide.metadata.store import (
    AccessDeniedError,
    AmbiguousError,
    Batch,
    CompactedError,
    Compare,
    KeyEvent,
    KeyValue,
    LeaseGoneError,
    LeaseId,
    Operation,
    Revision,
    TransactionResult,
    UnavailableError,
    check_transaction,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from lowtide.metadata.etcd_address import EtcdAccess

T = TypeVar("T")

START_TIMEOUT_S: Final = 10.0
"""How long `open` waits for an etcd that is starting too."""

_START_PAUSE_S: Final = 0.1

RANGE_ATTEMPTS: Final = 3
"""How often a range is restarted because the revision of its first page was compacted meanwhile."""


class EtcdStore:
    """A `MetadataStore` on etcd. Created by `open`."""

    failure: str | None = None
    """Always None: a failure here may pass."""

    def __init__(self, endpoints: Sequence[str], *, access: EtcdAccess = NO_ACCESS, prefix: bytes = b"\0") -> None:
        """Uses these endpoints, each `host:port`, of one etcd. Connects at the first use.

        `prefix` begins all keys; others may be inaccessible.
        """
        self._probe_key = prefix
        self._connection = EtcdConnection(endpoints, access)

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        access: EtcdAccess = NO_ACCESS,
        prefix: bytes = b"\0",
        timeout_s: float = START_TIMEOUT_S,
    ) -> EtcdStore:
        """Returns when etcd answers. Errors: UnavailableError if no endpoint does in time; AccessDeniedError."""
        store = cls(endpoints, access=access, prefix=prefix)
        reason = "not reached"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        await store.revision()
                        return store
                    except AccessDeniedError:
                        raise
                    except UnavailableError as error:
                        reason = str(error)
                    await asyncio.sleep(_START_PAUSE_S)
        except TimeoutError:
            await store.close()
            raise UnavailableError(f"no etcd answers at {', '.join(endpoints)} ({reason})") from None
        except BaseException:
            await store.close()
            raise

    async def close(self) -> None:
        """Aborts running calls and watches, and refuses everything. Leases last until their time is over."""
        await self._connection.close()

    async def get(self, key: bytes) -> KeyValue | None:
        response = await self._read("KV/Range", rpc.RangeRequest(key=key, limit=1), rpc.RangeResponse)
        return messages.key_value(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """Reads in pages, all at the revision of the first."""
        for _ in range(RANGE_ATTEMPTS):
            with suppress(CompactedError):
                return await self._range(prefix)
        raise UnavailableError(f"the revision of a range was compacted while it was read, {RANGE_ATTEMPTS} times")

    async def _range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        key, range_end = messages.key_range(prefix)
        pairs: list[KeyValue] = []
        revision = 0
        while True:
            request = rpc.RangeRequest(key=key, range_end=range_end, limit=PAGE_KEYS, revision=revision)
            response = await self._read("KV/Range", request, rpc.RangeResponse)
            revision = revision or response.header.revision
            pairs += map(messages.key_value, response.kvs)
            if not response.more:
                return pairs, revision
            key = pairs[-1].key + b"\0"

    async def revision(self) -> Revision:
        """Reads any key: every answer has the revision at which it was true."""
        response = await self._read("KV/Range", rpc.RangeRequest(key=self._probe_key, limit=1), rpc.RangeResponse)
        return response.header.revision

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        assert start_revision >= 1, f"watch from revision {start_revision}"
        next_revision, failures = start_revision, 0
        while True:
            self._check_open()
            try:
                async with self._connection.stream("Watch/Watch", rpc.WatchRequest, rpc.WatchResponse) as stream:
                    await stream.write(messages.watch_request(prefix, next_revision))
                    answers = _WatchAnswers()
                    timeout_s: float | None = REQUEST_TIMEOUT_S
                    while True:
                        for batch in answers.take(await stream.read(timeout_s)):
                            next_revision, failures = batch.revision + 1, 0
                            yield batch
                        timeout_s = None
            except CallFailedError as error:
                failures += 1
                self._connection.forget_token()  # For a watch, an expired token looks like a missing permission.
                if failures >= self._connection.attempts or self._connection.closed:
                    raise _unavailable(error) from error

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        check_transaction(compares, operations, otherwise)
        request = messages.transaction_request(compares, operations, otherwise)
        try:
            response = await self._call("KV/Txn", request, rpc.TxnResponse, repeatable=False)
        except CallFailedError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                raise LeaseGoneError(str(error)) from error
            raise _lost(error) from error
        return messages.transaction_result(response)

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        """Grants a lease. etcd counts in seconds and has a minimum; the granted time is never shorter than requested.

        Repeated after a lost answer: a lease that no broker knows of ends by itself.
        """
        response = await self._read(
            "Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=-(-time_to_live_ms // 1000)), rpc.LeaseGrantResponse
        )
        return response.ID

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        response = await self._until_answered(lambda: self._keep_alive(lease))
        if response.TTL <= 0:  # etcd reports a missing lease without an error.
            raise LeaseGoneError(f"lease {lease:x} has ended")

    async def _keep_alive(self, lease: LeaseId) -> rpc.LeaseKeepAliveResponse:
        async with self._connection.stream(
            "Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse
        ) as stream:
            await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
            return await stream.read(REQUEST_TIMEOUT_S)

    async def lease_revoke(self, lease: LeaseId) -> None:
        """Ends a lease. Repeatable, because lease ids aren't reused."""
        try:
            await self._call(
                "Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), rpc.LeaseRevokeResponse, repeatable=True
            )
        except CallFailedError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise _lost(error) from error

    @property
    def connections(self) -> int:
        return self._connection.connections

    async def raft_surplus(self) -> int | None:
        return await self._until_answered(self._connection.raft_surplus)

    def require_raft_surplus(self, least: int) -> None:
        self._connection.require_raft_surplus(least)

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Runs a call that may be repeated at one endpoint after the other. Errors: UnavailableError."""
        failure = None
        for _ in range(self._connection.attempts):
            self._check_open()
            try:
                return await call()
            except CallFailedError as error:
                failure = error
        assert failure is not None
        raise _unavailable(failure) from failure

    async def _read(self, method: str, request: Any, response_type: type[T]) -> T:
        """Runs a call that may be repeated and has no visible effect. Errors: UnavailableError, CompactedError."""
        try:
            return await self._call(method, request, response_type, repeatable=True)
        except CallFailedError as error:
            raise (
                CompactedError(str(error)) if error.code is grpc.StatusCode.OUT_OF_RANGE else _unavailable(error)
            ) from error

    async def _call(self, method: str, request: Any, response_type: type[T], *, repeatable: bool) -> T:
        """Tries the endpoints in turn, as long as that is safe.

        Errors: UnavailableError if the store is closed; CallFailedError, with the refusal, or the unknown outcome if
        there was one.
        """
        unknown: CallFailedError | None = None
        failure: CallFailedError | None = None
        for _ in range(self._connection.attempts):
            self._check_open()
            try:
                return await self._connection.call(method, request, response_type)
            except CallFailedError as error:
                failure = error
                if error.outcome is Outcome.REFUSED:
                    break
                if error.outcome is Outcome.UNKNOWN:
                    unknown = error
                    if not repeatable:
                        break
        assert failure is not None
        raise failure if failure.outcome is Outcome.REFUSED else unknown or failure

    def _check_open(self) -> None:
        if self._connection.closed:
            raise UnavailableError("the metadata store is closed")


class _WatchAnswers:
    """Combines the answers of one watch: a revision is delivered when it is complete."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[KeyEvent] = []

    def take(self, response: rpc.WatchResponse) -> list[Batch]:
        """Returns the complete batches. Errors: CompactedError; CallFailedError if etcd ends the watch.

        A refused watch is an ordinary message, not an error of the call.
        """
        if response.compact_revision:
            raise CompactedError(f"etcd has compacted everything before revision {response.compact_revision}")
        if response.canceled:
            raise CallFailedError(
                f"etcd ended the watch: {response.cancel_reason or 'no reason given'}", Outcome.UNKNOWN
            )
        batches = messages.batches_of([*self._held, *messages.events_of(response)])
        self._held = list(batches.pop().events) if response.fragment and batches else []
        return batches


def _lost(error: CallFailedError) -> AmbiguousError | UnavailableError:
    return AmbiguousError(str(error)) if error.outcome is Outcome.UNKNOWN else _unavailable(error)


def _unavailable(error: CallFailedError) -> UnavailableError:
    denied = error.code in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}
    return AccessDeniedError(str(error)) if denied else UnavailableError(str(error))

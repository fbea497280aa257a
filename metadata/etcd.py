"""The metadata store of a cluster: etcd v3, through a thin session of our own on `grpc.aio`.

Guards: a transaction is sent once. When its answer was lost, the caller gets AmbiguousError and decides; only reads,
and calls that may be repeated without harm, are repeated, at the next endpoint. All reads are linearizable. A watch
continues after a lost connection where it was, from the revision after the last that it delivered, so nothing is missed
and nothing comes twice; if etcd has compacted that revision, the watcher gets an error.

Does not do: deciding what an ambiguous transaction did (`writer`), pauses between attempts (`session`), compaction
(etcd has a setting for it, `--auto-compaction-retention`). Progress notifications are not relied upon: etcd has sent
wrong ones.

One event loop of a process may use it, for gRPC can't serve two. Sources: etcd's API guide, its `rpc.proto`; Jepsen's
reports on etcd and on its Java client, which executed transactions twice.
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
    Event,
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
    from collections.abc import AsyncGenerator, Sequence

    from lowtide.metadata.etcd_address import EtcdAccess

T = TypeVar("T")

START_TIMEOUT_S: Final = 10.0
"""How long an etcd that is being started too is waited for."""

_START_PAUSE_S: Final = 0.1

RANGE_ATTEMPTS: Final = 3
"""How often a range is started over because the revision of its first page was compacted meanwhile."""


class EtcdStore:
    """A `MetadataStore` on etcd. Made by `open`."""

    def __init__(self, endpoints: Sequence[str], *, access: EtcdAccess = NO_ACCESS, prefix: bytes = b"\0") -> None:
        """Use these endpoints, each `host:port`, of one etcd. Connects when it is first used.

        `prefix`: what all keys begin with, for there may be no permission for others.
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
        """Return when etcd answers.

        Errors: UnavailableError when none of the endpoints does in time; AccessDeniedError.
        """
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
            message = f"no etcd answers at {', '.join(endpoints)} ({reason})"
            raise UnavailableError(message) from None
        except BaseException:
            await store.close()
            raise

    @property
    def failure(self) -> str | None:
        """Always None: what fails here can come back."""
        return None

    async def close(self) -> None:
        """Give up what is under way, watches too, and refuse everything. Leases last until their time is over."""
        await self._connection.close()

    # Reading

    async def get(self, key: bytes) -> KeyValue | None:
        """See `MetadataStore.get`."""
        response = await self._read(
            "KV/Range", messages.range_request(key, b"", limit=1, revision=0), rpc.RangeResponse
        )
        return messages.key_value(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """See `MetadataStore.range`. Read in pages, all of them at the revision of the first."""
        for _ in range(RANGE_ATTEMPTS):
            with suppress(CompactedError):
                return await self._range(prefix)
        message = f"the revision of a range was compacted while it was read, {RANGE_ATTEMPTS} times"
        raise UnavailableError(message)

    async def _range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        key, range_end = messages.key_range(prefix)
        pairs: list[KeyValue] = []
        revision = 0
        while True:
            request = messages.range_request(key, range_end, limit=PAGE_KEYS, revision=revision)
            response = await self._read("KV/Range", request, rpc.RangeResponse)
            revision = revision or response.header.revision
            pairs += map(messages.key_value, response.kvs)
            if not response.more:
                return pairs, revision
            key = pairs[-1].key + b"\0"

    async def revision(self) -> Revision:
        """See `MetadataStore.revision`. A read like any other: every answer has the revision at which it was true."""
        response = await self._read(
            "KV/Range", messages.range_request(self._probe_key, b"", limit=1, revision=0), rpc.RangeResponse
        )
        return response.header.revision

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """See `MetadataStore.watch`."""
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
                self._connection.forget_token()  # That it is over isn't said to a watch otherwise than that it isn't permitted.
                if failures >= self._connection.attempts or self._connection.closed:
                    raise _unavailable(error) from error

    # Writing

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """See `MetadataStore.transact`."""
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
        """See `MetadataStore.lease_grant`. etcd counts in seconds, and has a shortest time: what is granted is never shorter than asked.

        Repeated after a lost answer: a lease that no broker knows of ends by itself.
        """
        response = await self._read(
            "Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=-(-time_to_live_ms // 1000)), rpc.LeaseGrantResponse
        )
        return response.ID

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_keep_alive`."""
        failure = None
        for _ in range(self._connection.attempts):
            self._check_open()
            try:
                async with self._connection.stream(
                    "Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse
                ) as stream:
                    await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
                    response = await stream.read(REQUEST_TIMEOUT_S)
            except CallFailedError as error:
                failure = error
                continue
            if response.TTL <= 0:  # A lease that is gone is no error to etcd.
                message = f"lease {lease:x} has ended"
                raise LeaseGoneError(message)
            return
        assert failure is not None
        raise _unavailable(failure) from failure

    async def lease_revoke(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_revoke`. May be called twice: the id of a lease is not given again."""
        try:
            await self._call(
                "Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), rpc.LeaseRevokeResponse, repeatable=True
            )
        except CallFailedError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise _lost(error) from error

    # Which etcd it is

    @property
    def connections(self) -> int:
        """See `MetadataStore.connections`."""
        return self._connection.connections

    async def raft_surplus(self) -> int | None:
        """See `MetadataStore.raft_surplus`."""
        failure = None
        for _ in range(self._connection.attempts):
            self._check_open()
            try:
                return await self._connection.raft_surplus()
            except CallFailedError as error:
                failure = error
        assert failure is not None
        raise _unavailable(failure) from failure

    def require_raft_surplus(self, least: int) -> None:
        """See `MetadataStore.require_raft_surplus`."""
        self._connection.require_raft_surplus(least)

    # Calls

    async def _read(self, method: str, request: Any, response_type: type[T]) -> T:
        """A call that may be repeated, and whose effect, if it has one, is not visible.

        Errors: UnavailableError, CompactedError.
        """
        try:
            return await self._call(method, request, response_type, repeatable=True)
        except CallFailedError as error:
            raise (
                CompactedError(str(error)) if error.code is grpc.StatusCode.OUT_OF_RANGE else _unavailable(error)
            ) from error

    async def _call(self, method: str, request: Any, response_type: type[T], *, repeatable: bool) -> T:
        """Try the endpoints in turn, as long as that is safe.

        Errors: UnavailableError when the store is closed; CallFailedError, a refusal or else one of unknown outcome if
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
            message = "the metadata store is closed"
            raise UnavailableError(message)


class _WatchAnswers:
    """Puts the answers of one watch together: a revision is delivered when all of it is there."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[Event] = []

    def take(self, response: rpc.WatchResponse) -> list[Batch]:
        """The batches that are whole now. Errors: CompactedError; CallFailedError when etcd ends the watch.

        A watch that is refused is a message like any other, no error of the call.
        """
        if response.compact_revision:
            message = f"etcd has compacted everything before revision {response.compact_revision}"
            raise CompactedError(message)
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

"""A metadata store that another process on this machine serves (`store_server`), over an inherited socket.

Guards: a transaction is sent once; if the connection ends before the answer, the caller gets AmbiguousError. There is
no reconnection, because the socket has no name. So the end of a connection is final, and the process that used it ends
too.

`served_renewer` renews leases while the loop is blocked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from lowtide.metadata.served_frames import (
    HEAD,
    MAX_ANSWER_BYTES,
    MORE,
    CancelRequest,
    FrameError,
    GetRequest,
    GrantRequest,
    KeepAliveRequest,
    RangePart,
    RangeRequest,
    Request,
    RevisionRequest,
    RevokeRequest,
    ServedAnswer,
    TransactRequest,
    WatchRequest,
    error_of,
    length_of,
    read_answer,
    request_frame,
)
from lowtide.metadata.store import (
    AmbiguousError,
    Batch,
    KeyValue,
    TransactionResult,
    UnavailableError,
    check_transaction,
)
from lowtide.runtime.network import over_socket
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Sequence

    from lowtide.metadata.store import Compare, LeaseId, Operation, Revision

T = TypeVar("T")

ANSWER_TIMEOUT_S: Final = 30.0
"""How long an answer may take, except a watch's: longer than a commit on a working disk."""

_pair: Final = msgspec.msgpack.Decoder(KeyValue | None)
_part: Final = msgspec.msgpack.Decoder(RangePart)
_number: Final = msgspec.msgpack.Decoder(int)
_result: Final = msgspec.msgpack.Decoder(TransactionResult)
_nothing: Final = msgspec.msgpack.Decoder(None)
_batch: Final = msgspec.msgpack.Decoder(Batch)


class LostError(Exception):
    """The connection ended, or no answer came in time, after the request was sent: it may have been applied."""


class _OpenRequest:
    """A sent request, and the received parts of its answer."""

    __slots__ = ("answer", "parts")

    def __init__(self, answer: asyncio.Future[ServedAnswer]) -> None:
        self.answer = answer
        self.parts: list[ServedAnswer] = []


class ServedStore:
    """A `MetadataStore` over a connection to its server. Created by `open`; used from one event loop."""

    connections = 1

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], answer_timeout_s: float) -> None:
        self._reader, self._writer = streams
        self._answer_timeout_s = answer_timeout_s
        self._waiting: dict[int, _OpenRequest] = {}
        self._requests = 0
        self._closed = False
        self.failure: str | None = None
        """Why the store can't be used any more; None while the connection lasts."""
        self._tasks = TaskRegistry(
            lambda _name, error: self._end(f"the answers of the metadata store cannot be read: {error!r}")
        )
        self._tasks.spawn(self._read(), name="metadata client")

    @classmethod
    async def open(cls, connection: socket.socket, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> ServedStore:
        """Uses and owns one end of a socket pair; the server has the other.

        Errors: UnavailableError if it doesn't answer.
        """
        try:
            store = cls(await over_socket(connection), answer_timeout_s)
        except OSError as error:
            raise UnavailableError(f"the socket to the metadata store cannot be used: {error}") from error
        try:
            await store.revision()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Aborts running requests and watches, and refuses everything. Leases last until their time is over."""
        self._closed = True
        self._end_waiting()
        await self._tasks.cancel_all()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def get(self, key: bytes) -> KeyValue | None:
        return await self._read_one(GetRequest(self._next(), key), _pair)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        try:
            parts = await self._ask(RangeRequest(self._next(), prefix))
        except LostError as error:
            raise UnavailableError(str(error)) from error
        pairs: list[KeyValue] = []
        for answer in parts:
            part = _part.decode(answer.content)
            pairs += part.pairs
        return pairs, part.revision

    async def revision(self) -> Revision:
        return await self._read_one(RevisionRequest(self._next()), _number)

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Yields batches. The store's history is the queue: a slow watcher needs no memory."""
        assert start_revision >= 1, f"watch from revision {start_revision}"
        next_revision = start_revision
        while True:
            batch = await self._read_one(WatchRequest(self._next(), prefix, next_revision), _batch, timeout_s=None)
            next_revision = batch.revision + 1
            yield batch

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        check_transaction(compares, operations, otherwise)
        request = TransactRequest(self._next(), tuple(compares), tuple(operations), tuple(otherwise))
        try:
            (answer,) = await self._ask(request)
        except LostError as error:
            raise AmbiguousError(str(error)) from error
        return _result.decode(answer.content)

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        return await self._read_one(GrantRequest(self._next(), time_to_live_ms), _number)

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        await self._read_one(KeepAliveRequest(self._next(), lease), _nothing)

    async def lease_revoke(self, lease: LeaseId) -> None:
        try:
            await self._ask(RevokeRequest(self._next(), lease))
        except LostError as error:
            raise AmbiguousError(str(error)) from error

    async def raft_surplus(self) -> int | None:
        return None

    def require_raft_surplus(self, least: int) -> None: ...

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    async def _read_one(
        self, request: Request, decoder: msgspec.msgpack.Decoder[T], *, timeout_s: float | None = -1.0
    ) -> T:
        """Sends a request that has no visible effect, or may be repeated. Errors: those of the port."""
        try:
            (answer,) = await self._ask(request, timeout_s=timeout_s)
        except LostError as error:
            raise UnavailableError(str(error)) from error
        return decoder.decode(answer.content)

    async def _ask(self, request: Request, *, timeout_s: float | None = -1.0) -> list[ServedAnswer]:
        """Sends a request and returns its answer, in parts.

        A negative `timeout_s` means the store's own; None waits without limit. Errors: LostError; UnavailableError, and
        the error that the server raised.
        """
        if self._closed or self.failure is not None:
            raise UnavailableError(self.failure or "the metadata store is closed")
        waiting = self._waiting[request.number] = _OpenRequest(asyncio.get_running_loop().create_future())
        limit_s = self._answer_timeout_s if timeout_s is not None and timeout_s < 0 else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(request_frame(request))
                with suppress(OSError):  # The reader notices too.
                    await self._writer.drain()
                last = await waiting.answer
        except TimeoutError:
            raise LostError(f"the metadata store did not answer within {limit_s} s") from None
        finally:
            if self._waiting.pop(request.number, None) is not None and not self._closed and self.failure is None:
                self._writer.write(request_frame(CancelRequest(request.number)))
        error = error_of(last)
        if error is not None:
            raise error
        return [*waiting.parts, last]

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(HEAD.size)
                self._take(read_answer(await self._reader.readexactly(length_of(head, MAX_ANSWER_BYTES))))
        except (asyncio.IncompleteReadError, OSError):
            self._end("the process that serves the metadata store has ended the connection")
        except FrameError as error:
            self._end(f"the metadata store answers in a way that cannot be read: {error}")

    def _take(self, answer: ServedAnswer) -> None:
        waiting = self._waiting.get(answer.number)
        if waiting is None:  # It was cancelled.
            return
        if answer.kind == MORE:
            waiting.parts.append(answer)
            return
        del self._waiting[answer.number]
        if not waiting.answer.done():
            waiting.answer.set_result(answer)

    def _end(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
        self._end_waiting()

    def _end_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(LostError(self.failure or "the metadata store is closed"))
                each.answer.exception()  # The asking task may be gone.

"""Serves a metadata store to other processes on this machine, over inherited sockets.

A connection is one end of a socket pair. It has no name, so there is no file with permissions or a path limit, a killed
process leaves nothing behind, and only a process that inherited the other end can use it. When either process dies, the
other one sees the end of the connection.

Guards: a request is answered once, or its connection ends. Requests after the last answer may have been applied, as in
etcd. A lease outlives the connection over which it was granted; `end_leases` is for an owner that knows that the
process is dead.

The supervisor opens the store and starts the processes.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, assert_never

from lowtide.metadata.served_frames import (
    DONE,
    HEAD,
    MAX_REQUEST_BYTES,
    MORE,
    CancelRequest,
    FrameError,
    GetRequest,
    GrantRequest,
    KeepAliveRequest,
    RangeRequest,
    Request,
    RevisionRequest,
    RevokeRequest,
    TransactRequest,
    WatchRequest,
    answer_frame,
    error_frame,
    length_of,
    parts_of,
    read_request,
)
from lowtide.metadata.store import LeaseId, MetadataStoreError, UnavailableError
from lowtide.runtime.network import over_socket
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from lowtide.metadata.store import Batch, MetadataStore

MAX_UNDER_WAY: Final = 10_000
"""Requests of one connection that may wait for answers, including watches. More are not read before."""


class ServedConnection:
    """One client of a store. Used from the store's event loop; created by `serve_store`."""

    def __init__(
        self,
        store: MetadataStore,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_fault: Callable[[str], None],
    ) -> None:
        """Starts answering. `on_fault` gets a sentence when invalid data ends the connection."""
        self._store = store
        self._reader, self._writer = streams
        self._on_fault = on_fault
        self._tasks = TaskRegistry(self._on_task_failed)
        self._room = asyncio.Semaphore(MAX_UNDER_WAY)
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[LeaseId, None] = {}
        self._reading = self._tasks.spawn(self._read(), name="metadata server")

    @property
    def under_way(self) -> int:
        """Requests that wait for answers, including watches."""
        return len(self._under_way)

    async def wait_closed(self) -> None:
        """Returns when the client has ended the connection, or `close` was called."""
        await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Ends the connection. Open requests get no answer; a transaction among them may be applied."""
        await self._tasks.cancel_all()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def end_leases(self) -> None:
        """Ends the leases granted here and not revoked, because the process that held them is dead.

        Errors: UnavailableError, AmbiguousError; the leases then end by themselves.
        """
        while self._leases:
            await self._store.lease_revoke(self._leases.popitem()[0])

    async def _read(self) -> None:
        try:
            while True:
                await self._room.acquire()
                head = await self._reader.readexactly(HEAD.size)
                self._take(read_request(await self._reader.readexactly(length_of(head, MAX_REQUEST_BYTES))))
        except FrameError as error:
            self._on_fault(str(error))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            for task in self._under_way.values():
                task.cancel()
            self._writer.close()

    def _take(self, request: Request) -> None:
        """Starts answering a request, or cancels one. Errors: FrameError."""
        number = request.number
        if isinstance(request, CancelRequest):
            self._room.release()
            if number in self._under_way:
                self._under_way[number].cancel()
            return
        if number in self._under_way:
            raise FrameError(f"request {number} comes twice")
        self._under_way[number] = self._tasks.spawn(self._answer(request), name="metadata request")
        self._under_way[number].add_done_callback(lambda _task: self._on_answered(number))

    def _on_answered(self, number: int) -> None:
        self._room.release()
        del self._under_way[number]

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        self._on_fault(f"{name}: {error!r}")
        self._writer.close()

    async def _answer(self, request: Request) -> None:
        try:
            frames = await self._frames(request)
        except MetadataStoreError as error:
            frames = [error_frame(request.number, error)]
        except AssertionError as error:  # A transaction that no engine takes, which the client checks too.
            frames = [error_frame(request.number, UnavailableError(str(error)))]
        with suppress(OSError):
            for frame in frames:
                self._writer.write(frame)
                await self._writer.drain()

    async def _frames(self, request: Request) -> list[bytes]:
        """Returns the answer's frames. Errors: MetadataStoreError."""
        number, store = request.number, self._store
        result: object = None
        match request:
            case GetRequest():
                result = await store.get(request.key)
            case RangeRequest():
                *parts, last = parts_of(*await store.range(request.prefix))
                return [*(answer_frame(number, MORE, part) for part in parts), answer_frame(number, DONE, last)]
            case RevisionRequest():
                result = await store.revision()
            case TransactRequest():
                result = await store.transact(request.compares, request.operations, request.otherwise)
            case GrantRequest():
                result = await store.lease_grant(request.time_to_live_ms)
                self._leases[result] = None
            case KeepAliveRequest():
                await store.lease_keep_alive(request.lease)
            case RevokeRequest():
                await store.lease_revoke(request.lease)
                self._leases.pop(request.lease, None)
            case WatchRequest():
                result = await self._next_batch(request)
            case CancelRequest():
                raise AssertionError("a cancellation is not answered")
            case _:
                assert_never(request)
        return [answer_frame(number, DONE, result)]

    async def _next_batch(self, request: WatchRequest) -> Batch:
        async with aclosing(self._store.watch(request.prefix, request.start_revision)) as batches:
            return await anext(batches)


async def serve_store(
    store: MetadataStore, connection: socket.socket, on_fault: Callable[[str], None]
) -> ServedConnection:
    """Serves over one end of a socket pair, which it owns. Errors: OSError."""
    return ServedConnection(store, await over_socket(connection), on_fault)

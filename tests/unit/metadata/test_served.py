"""A store that is served to other processes.

What the conformance suite doesn't ask for, because only this one has two ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lowtide.metadata.embedded import EmbeddedStore
from lowtide.metadata.served_frames import (
    HEAD,
    MAX_REQUEST_BYTES,
    FrameError,
    RevisionRequest,
    answer_frame,
    error_of,
    read_answer,
    request_frame,
)
from lowtide.metadata.served_renewer import ServedRenewer
from lowtide.metadata.served_store import ServedStore
from lowtide.metadata.store import AmbiguousError, Compare, LeaseGoneError, Put, UnavailableError

from .machines import ServedMachine, put

Play = Callable[[Callable[[ServedMachine], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario on a served store."""

    def run(scenario: Callable[[ServedMachine], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            machine = ServedMachine(tmp_path)
            try:
                async with asyncio.timeout(60):
                    await scenario(machine)
            finally:
                await machine.end()

        asyncio.run(whole())

    return run


def test_two_processes_see_one_store(play: Play) -> None:
    """What one writes, the other reads and watches; of two that compare and swap at once, one wins."""

    async def scenario(machine: ServedMachine) -> None:
        one, other = await machine.open(), await machine.open()
        watching = other.watch(b"k", 1)
        coming = asyncio.ensure_future(anext(watching))
        absent = Compare(b"k", "create", "==", 0)
        results = await asyncio.gather(
            one.transact([absent], [Put(b"k", b"1")]), other.transact([absent], [Put(b"k", b"2")])
        )
        assert sorted(result.succeeded for result in results) == [False, True]
        assert (await coming).revision == 1
        await watching.aclose()
        assert await one.range(b"") == await other.range(b"")

    play(scenario)


def test_a_server_that_dies_leaves_nothing_waiting(play: Play) -> None:
    """Its death is a failure for good.

    Reads fail, a transaction that was sent is ambiguous, and so is what comes of its lease.
    """

    async def scenario(machine: ServedMachine) -> None:
        ours, theirs = socket.socketpair()
        streams = await asyncio.open_unix_connection(sock=ours)
        opening = asyncio.ensure_future(ServedStore.open(theirs))
        await streams[0].readexactly(HEAD.size)
        streams[1].write(answer_frame(1, 0, 7))
        store = await opening
        assert store.failure is None
        pending = [
            asyncio.ensure_future(each)
            for each in (
                store.range(b""),
                put(store, Put(b"k", b"")),
                store.lease_revoke(3),
                anext(store.watch(b"", 1)),
            )
        ]
        await streams[0].readuntil(b"WatchRequest")
        streams[1].close()
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(each) for each in outcomes] == [UnavailableError, AmbiguousError, AmbiguousError, UnavailableError]
        assert store.failure == "the process that serves the metadata store has ended the connection"
        with pytest.raises(UnavailableError):
            await put(store, Put(b"k", b""))
        await store.close()

    play(scenario)


def test_a_silent_server_is_not_waited_for_without_end(play: Play) -> None:
    """A transaction without an answer is ambiguous, and the connection is used on."""

    async def scenario(machine: ServedMachine) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        opening = asyncio.ensure_future(ServedStore.open(theirs, answer_timeout_s=0.05))
        await reader.readexactly(HEAD.size)
        writer.write(answer_frame(1, 0, 7))
        store = await opening
        with pytest.raises(AmbiguousError, match="did not answer within"):
            await put(store, Put(b"k", b""))
        with pytest.raises(UnavailableError):
            await store.range(b"")
        writer.write(answer_frame(2, 0, None) + answer_frame(4, 0, 8))
        assert await store.revision() == 8, "late answers are passed over"
        await store.close()
        writer.close()

    play(scenario)


def test_a_watch_that_is_given_up_ends_on_the_server(play: Play) -> None:
    """Or each fetch of an image would leave a task and a request behind for ever."""

    async def scenario(machine: ServedMachine) -> None:
        store = await machine.open()
        (connection,) = machine.connections
        for _ in range(3):
            watching = asyncio.ensure_future(anext(store.watch(b"", 1)))
            while not connection.under_way:
                await asyncio.sleep(0)
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            while connection.under_way:
                await asyncio.sleep(0)

    play(scenario)


def test_leases_outlive_the_connection_but_not_a_process_known_to_be_dead(play: Play) -> None:
    """As in etcd.

    Only the owner of the server, who has seen the process end, may say that no time need be waited for.
    """

    async def scenario(machine: ServedMachine) -> None:
        store: Any = await machine.open()
        other = await machine.open()
        lease, kept, revoked = [await store.lease_grant(60_000) for _ in range(3)]
        of_other = await other.lease_grant(60_000)
        await put(store, Put(b"l", b"", lease), Put(b"k", b"", kept), Put(b"o", b"", of_other))
        await store.lease_revoke(revoked)
        await store.close()
        first = machine.connections[0]
        await first.wait_closed()
        assert [pair.key for pair in (await other.range(b""))[0]] == [b"k", b"l", b"o"]
        await first.end_leases()
        assert [pair.key for pair in (await other.range(b""))[0]] == [b"o"]
        await other.lease_keep_alive(of_other)

    play(scenario)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEAD.pack(MAX_REQUEST_BYTES + 1), "are allowed"),
        (HEAD.pack(3) + b"abc", "not a request"),
        (HEAD.pack(1) + b"\x90", "not a request"),
        (request_frame(RevisionRequest(1))[:-1] + b"\xc0", "not a request"),
    ],
)
def test_what_is_no_request_ends_the_connection(play: Play, sent: bytes, said: str) -> None:
    """And only that one: the others, and the store, go on."""

    async def scenario(machine: ServedMachine) -> None:
        store = await machine.open()
        reader, writer = await asyncio.open_unix_connection(sock=await machine.connect())
        writer.write(sent)
        assert await reader.read() == b""
        assert said in machine.faults[0]
        assert await store.revision() == 0
        writer.close()

    play(scenario)


def test_answers_that_cannot_be_read_are_a_failure(play: Play) -> None:
    """Of a kind that isn't known, or no answers at all."""
    with pytest.raises(FrameError):
        error_of(read_answer(answer_frame(1, 99, "")[HEAD.size :]))

    async def scenario(machine: ServedMachine) -> None:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(HEAD.pack(2) + b"no")
        with pytest.raises(UnavailableError, match="cannot be read"):
            await ServedStore.open(theirs)
        writer.close()

    play(scenario)


def test_a_keeper_renews_over_a_connection_of_its_own(play: Play) -> None:
    """While the loop of its process is held; it finds out when the lease is gone, and when the server is."""

    async def scenario(machine: ServedMachine) -> None:
        store = await machine.open()
        lease = await store.lease_grant(60_000)
        renewer = ServedRenewer(await machine.connect())
        await asyncio.to_thread(renewer.renew, lease)
        await store.lease_revoke(lease)
        with pytest.raises(LeaseGoneError):
            await asyncio.to_thread(renewer.renew, lease)
        await machine.connections[-1].close()
        with pytest.raises(UnavailableError):
            await asyncio.to_thread(renewer.renew, lease)
        renewer.close()
        renewer.close()

    play(scenario)


def test_a_keeper_passes_over_the_answer_that_came_too_late() -> None:
    """It belongs to a renewal that was given up; in pieces, as sockets have it."""
    ours, theirs = socket.socketpair()
    with ours:
        renewer = ServedRenewer(theirs)
        late, answer = answer_frame(0, 0, None), answer_frame(1, 0, None)
        ours.sendall(late + answer[:3])
        with pytest.raises(UnavailableError):
            renewer.renew(9)
        renewer._requests = 0
        ours.sendall(answer[3:])
        renewer.renew(9)
        renewer.close()


def test_a_failed_disk_is_told_as_the_store_itself_tells_it(play: Play) -> None:
    """Unavailable where nothing was written; the processes see the same error as one that has the file."""

    async def scenario(machine: ServedMachine) -> None:
        store: Any = await machine.open()
        embedded: EmbeddedStore = machine.embedded.opened[0]
        await embedded.close()
        with pytest.raises(UnavailableError, match="the metadata store is closed"):
            await put(store, Put(b"k", b""))
        with pytest.raises(UnavailableError):
            await store.range(b"")
        assert store.failure is None, "the connection lasts, and what the owner of the file decides is not known here"

    play(scenario)

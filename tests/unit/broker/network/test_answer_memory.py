"""Responses that clients request and do not read: their memory is bounded, and clients that read are served."""

from __future__ import annotations

import asyncio
from functools import partial

from lowtide.broker.network.connection.answer_memory import FILES_REASON, REASON, SILENT_MS, AnswerMemory
from lowtide.broker.network.connection.outgoing import BufferPool, OutgoingQueue
from lowtide.broker.network.routing.request_times import RequestClock
from lowtide.runtime.clock import SystemClock

from .test_connection import ECHO, LARGE, World, answer, frame, simulate

LIMIT = 5_000_000


class Client:
    """A writer with a given number of unread bytes."""

    def __init__(self, unread_bytes: int, files_held: int = 0) -> None:
        self.unread_bytes = unread_bytes
        self.files_held = files_held
        self.reason = ""

    @property
    def closed(self) -> bool:
        return self.reason == REASON

    def give_up(self, reason: str) -> None:
        assert not self.reason
        self.reason = reason


def test_the_client_that_has_read_nothing_for_longest_is_closed_first() -> None:
    now = [0]
    memory = AnswerMemory(100, lambda: now[0])
    reads, silent, later = Client(40), Client(40), Client(40)
    for client in (reads, silent):
        memory.note(client)
        now[0] += 1_000
    reads.unread_bytes = 39
    memory.note(later)
    assert [client.closed for client in (reads, silent, later)] == [False, True, False]
    assert memory.used_bytes == 39 + 40


def test_a_client_that_reads_is_not_silent_though_as_much_is_left() -> None:
    """A large answer is sent piece by piece, each as large as the one before."""
    now = [0]
    memory = AnswerMemory(100, lambda: now[0])
    reads, silent = Client(40), Client(40)
    memory.note(reads)
    now[0] += 1_000
    memory.note(silent)
    now[0] += 1_000
    memory.note(reads, has_read=True)
    memory.note(Client(40))
    assert [client.closed for client in (reads, silent)] == [False, True]


class FullSocket:
    """Takes nothing of a write at once, and all of it when its queue is resumed.

    Each piece is larger than the one before.
    """

    def __init__(self) -> None:
        self.queue: OutgoingQueue | None = None
        self.size = 20

    def writelines(self, _parts: object) -> None:
        assert self.queue is not None
        self.queue.paused = True
        self.size += 10

    def get_write_buffer_size(self) -> int:
        return self.size


def test_a_queue_whose_socket_took_a_piece_is_not_silent() -> None:
    now, closed = [0], list[str]()
    memory = AnswerMemory(100, lambda: now[0])
    queues = {}
    for name in ("reads", "silent"):
        socket = FullSocket()
        broken, clock = partial(lambda name, _reason: closed.append(name), name), RequestClock(SystemClock())
        socket.queue = queues[name] = OutgoingQueue(socket, BufferPool(1, 1), None, broken, clock, memory=memory)
        queues[name].send([b"a piece"])
        queues[name].send([b"another"])
        now[0] += 1_000
    queues["reads"].resume()
    memory.note(Client(40))
    assert closed == ["silent"]


def test_files_are_taken_from_clients_that_are_silent_for_longest() -> None:
    now = [0]
    memory = AnswerMemory(10_000, lambda: now[0])
    reads, holds_none, first, second, third = clients = [
        Client(40, 9),
        Client(40),
        Client(40, 2),
        Client(40, 2),
        Client(40, 2),
    ]
    for client in clients:
        memory.note(client)
        now[0] += 1
    last = Client(40, 9)
    now[0] += SILENT_MS - 1
    memory.note(last)
    reads.unread_bytes = 39
    memory.free_files(3)
    assert [client.reason for client in (*clients, last)] == ["", "", FILES_REASON, FILES_REASON, "", ""]
    memory.free_files(1_000)
    assert [third.reason, last.reason, holds_none.reason, reads.reason] == [FILES_REASON, "", "", ""]
    now[0] += SILENT_MS
    memory.free_files(1)
    assert [first.reason, second.reason, reads.reason, last.reason].count(FILES_REASON) == 3


def test_bytes_that_were_read_do_not_count() -> None:
    memory = AnswerMemory(100, lambda: 0)
    clients = [Client(60), Client(60)]
    memory.note(clients[0])
    clients[0].unread_bytes = 10
    memory.note(clients[1])
    assert not any(client.closed for client in clients)
    clients[0].unread_bytes = 0
    memory.note(clients[0])
    memory.forget(clients[1])
    memory.forget(clients[1])
    assert memory.used_bytes == 0


def test_many_that_never_read_are_closed_and_one_that_reads_is_served() -> None:
    async def run(world: World) -> None:
        world.host.answers = AnswerMemory(LIMIT, world.clock.monotonic_ms)
        reader, writer = await world.client()
        most = 0
        for number in range(40):
            silent, asks = await world.client()
            silent._transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(4):
                asks.write(frame(LARGE, number, b"x"))
            await asyncio.sleep(0.1)
            most = max(most, world.host.answers.used_bytes)
            writer.write(frame(LARGE, number, b"y"))
            assert (await answer(reader))[0] == number
        assert LIMIT / 2 < most <= LIMIT
        assert len(world.host.connections) < 20
        assert set(world.log.reasons) == {REASON}
        writer.write(frame(ECHO, 99, b"z"))
        assert await answer(reader) == (99, b"z")

    simulate(run)


def test_closed_connections_do_not_count() -> None:
    async def run(world: World) -> None:
        for number in range(3):
            silent, asks = await world.client()
            silent._transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(2):
                asks.write(frame(LARGE, number, b"x"))
        await asyncio.sleep(0.5)
        assert world.host.answers.used_bytes > 0
        for writer in world.writers:
            writer.transport.abort()
        await asyncio.sleep(0.5)
        assert world.host.answers.used_bytes == 0

    simulate(run)

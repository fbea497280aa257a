"""Answers of several connections leave at the end of one pass of the loop; a lone client gets its answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.network.connection.pass_answers import HELD_NS, NEAR_NS, REST_NS, PassAnswers

from .test_connection import ECHO, PARK, World, frame, simulate


class Broken:
    """Answers that cannot be sent."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.outgoing = SimpleNamespace(give_up=self.reasons.append)

    def flush(self) -> None:
        raise RuntimeError("a bug")


class Given:
    """Answers that note when they are sent."""

    def __init__(self, name: str, sent: list[str]) -> None:
        self._name, self._sent = name, sent

    def flush(self) -> None:
        self._sent.append(self._name)


class Pass:
    """The answers of connections a, b, … and the time at which their requests were received."""

    def __init__(self) -> None:
        self.clock: Any = SimpleNamespace(moment_ns=1_000_000_000)
        self.tried = PassAnswers(self.clock)
        self.sent: list[str] = []
        self._answers = {name: Given(name, self.sent) for name in "abcdef"}

    def take(self, name: str, after_ns: int = 1000) -> list[str]:
        """Answers a connection so long after the one before; returns all that are sent."""
        self.clock.moment_ns += after_ns
        self.tried.take(self._answers[name])
        return self.sent

    async def end(self) -> list[str]:
        await asyncio.sleep(0)
        return self.sent


async def test_answers_wait_for_the_end_of_the_pass() -> None:
    tried = Pass()
    assert tried.take("a", REST_NS) == ["a"]
    assert tried.take("b") == ["a"]
    assert tried.take("c") == ["a"]
    assert await tried.end() == ["a", "b", "c"]
    assert tried.take("d", NEAR_NS - 1) == ["a", "b", "c"]
    assert await tried.end() == ["a", "b", "c", "d"]


async def test_an_answer_long_after_another_one_leaves_at_once() -> None:
    tried = Pass()
    tried.take("a")
    assert tried.take("b", NEAR_NS) == ["a", "b"]


async def test_after_a_pass_with_one_answer_none_waits_for_a_time() -> None:
    """Otherwise two clients that ask in turn would always wait for nothing."""
    tried = Pass()
    tried.take("a")
    assert tried.take("b") == ["a"]
    assert await tried.end() == ["a", "b"]
    began_ns = tried.clock.moment_ns
    count = 2
    while tried.clock.moment_ns - began_ns + NEAR_NS // 2 < REST_NS:
        count += 1
        assert len(tried.take("ab"[count % 2], NEAR_NS // 2)) == count
    assert len(tried.take("c", NEAR_NS // 2)) == count
    assert len(await tried.end()) == count + 1


async def test_no_answer_waits_long_in_a_long_pass() -> None:
    tried = Pass()
    tried.take("a")
    tried.take("b")
    for _ in range(HELD_NS // (NEAR_NS // 2) - 1):
        assert tried.take("c", NEAR_NS // 2) == ["a"]
    assert tried.take("d", NEAR_NS // 2)[-1] == "d"
    sent = list(tried.sent)
    assert await tried.end() == sent


async def test_one_connection_that_cannot_send_affects_no_other() -> None:
    tried, broken, reported = Pass(), Broken(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(str(context["exception"])))
    tried.take("a")
    tried.take("b")
    tried.tried.take(broken)
    tried.take("c")
    assert await tried.end() == ["a", "b", "c"]
    assert (broken.reasons, reported) == (["its answers could not be sent"], ["a bug"])


def connected(world: World) -> tuple[Connection, Any]:
    """Returns a connection and its transport, whose `sent` has what was written, with `None` for the end."""
    sent: list[bytes | None] = []
    transport: Any = SimpleNamespace(
        sent=sent,
        get_extra_info=lambda name: ("127.0.0.1", 1) if name == "peername" else None,
        set_write_buffer_limits=lambda high: None,
        writelines=sent.extend,
        get_write_buffer_size=lambda: 0,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
        is_closing=lambda: False,
        close=lambda: sent.append(None),
    )
    made = Connection(world.host)
    made.connection_made(transport)
    return made, transport


def receive(connection: Connection, *frames: bytes) -> None:
    received = b"".join(frames)
    connection.get_buffer(-1)[: len(received)] = received
    connection.buffer_updated(len(received))


@pytest.mark.parametrize("end", [Connection.eof_received, Connection.close_gracefully])
def test_a_client_whose_connection_ends_gets_the_answer_that_waits(end: Callable[[Connection], object]) -> None:
    async def run(world: World) -> None:
        (first, of_first), (second, of_second) = connected(world), connected(world)
        receive(first, frame(ECHO, 1, b"a"))
        receive(second, frame(ECHO, 2, b"b"))
        assert len(of_first.sent) == 1
        assert of_second.sent == []
        end(second)
        assert of_second.sent == []
        await asyncio.sleep(0)
        assert of_second.sent == [b"\0\0\0\5\0\0\0\2b", None]
        for connection in (first, second):
            connection.connection_lost(None)

    simulate(run)


def test_answers_keep_their_order_behind_one_that_waits() -> None:
    async def run(world: World) -> None:
        (first, of_first), (second, of_second) = connected(world), connected(world)
        receive(first, frame(ECHO, 1, b"a"))
        receive(second, frame(ECHO, 2, b"b"), frame(PARK, 3, b"c"))
        (await world.parked()).complete(b"c")
        assert [part[4:8] for part in of_second.sent] == [b"\0\0\0\2", b"\0\0\0\3"]
        assert len(of_first.sent) == 1
        for connection in (first, second):
            connection.connection_lost(None)

    simulate(run)

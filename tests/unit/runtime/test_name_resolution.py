"""Names that the system resolves or doesn't: looked up in a thread, for a limited time."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from lowtide.runtime.name_resolution import is_literal, unresolved


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("localhost", False),
        ("broker-1", False),
        ("10.example", False),
    ],
)
def test_literal_addresses_are_known(host: str, expected: bool) -> None:
    assert is_literal(host) is expected


async def test_what_is_not_resolved_is_returned_with_the_reason() -> None:
    asked: list[str] = []

    def resolve(name: str) -> None:
        asked.append(name)
        assert threading.current_thread() is not threading.main_thread()
        if name == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if name == "x" * 70:
            raise UnicodeError("label too long")

    hosts = ["nowhere", "127.0.0.1", "here", "x" * 70, "nowhere", "::1"]
    found = await unresolved(hosts, 60, resolve)
    assert found == {"nowhere": "Name or service not known", "x" * 70: "label too long"}
    assert asked == ["nowhere", "here", "x" * 70]


async def test_addresses_alone_cost_no_thread() -> None:
    before = threading.active_count()
    assert await unresolved(["127.0.0.1", "10.0.0.1"], 60, lambda _: pytest.fail("it was looked up")) == {}
    assert threading.active_count() == before


async def test_a_resolver_that_is_silent_is_waited_for_no_longer_than_that() -> None:
    """What it had answered counts; the thread ends when it answers at last, also where the loop is closed."""
    answers = threading.Event()

    def resolve(name: str) -> None:
        if name != "known":
            assert answers.wait(60)

    assert await unresolved(["known", "silent", "behind"], 0.05, resolve) == dict.fromkeys(
        ("silent", "behind"), "no answer within 0.05 s"
    )
    (thread,) = [each for each in threading.enumerate() if each.name == "name resolution"]
    answers.set()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


async def test_the_system_resolves_localhost() -> None:
    assert await unresolved(["localhost"], 60) == {}

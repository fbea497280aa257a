"""The client for code that cannot await.

A loop in a thread, which a fork does not copy, and which ends when it is closed.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
import threading

import pytest

from lowtide.admin import (
    AdminClient,
    BlockingAdminClient,
    BrokerAnsweredError,
    ClientClosedError,
    DeadlineExceededError,
)
from lowtide.admin.blocking import _blocking
from lowtide.runtime import loop_thread
from lowtide.runtime.loop_thread import LoopThread


async def twice(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@pytest.fixture
def thread():
    made = LoopThread("test")
    yield made
    made.close()


def test_coroutines_run_in_the_thread(thread: LoopThread):
    assert thread.run(twice(4)) == 8
    with pytest.raises(ZeroDivisionError):
        thread.run(failing())


async def failing() -> None:
    raise ZeroDivisionError


async def test_it_works_inside_a_running_loop(thread: LoopThread):
    """A running loop, as in a notebook."""
    assert thread.run(twice(4)) == 8


def test_several_threads_may_wait(thread: LoopThread):
    results: list[int] = []
    waiting = [
        threading.Thread(target=lambda number=number: results.append(thread.run(twice(number)))) for number in range(8)
    ]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join(30)
    assert sorted(results) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_call_that_could_never_end_raises(thread: LoopThread):
    """The calls come from the loop's own thread, after the end, and from a forked process without the thread."""

    async def from_within() -> None:
        thread.run(twice(1))

    with pytest.raises(RuntimeError, match="its own loop"):
        thread.run(from_within())
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(twice(1))


def test_a_child_needs_its_own(thread: LoopThread, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(loop_thread.os, "getpid", lambda: -1)
        assert thread.is_closed
        with pytest.raises(RuntimeError, match="after a fork"):
            thread.run(twice(1))
        thread.close()
    assert thread.run(twice(4)) == 8


def test_closing_cancels_what_runs():
    made = LoopThread("test")
    begun, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            ended.set()

    waiting = threading.Thread(target=lambda: pytest.raises(BaseException, made.run, waits()))  # noqa: B017, RUF061
    waiting.start()
    assert begun.wait(30)
    made.close()
    assert ended.wait(30)
    waiting.join(30)
    assert not waiting.is_alive()


def test_the_blocking_client_has_every_method():
    """With the same arguments, so that one documentation is enough."""
    for name, method in inspect.getmembers(AdminClient, inspect.iscoroutinefunction):
        if name.startswith("_") or name == "close":
            continue
        blocking = getattr(BlockingAdminClient, name)
        assert blocking.__doc__ == method.__doc__
        assert inspect.signature(blocking) == inspect.signature(method)


def test_the_blocking_client_closes():
    client = BlockingAdminClient("127.0.0.1:1")
    with client:
        pass
    client.close()
    with pytest.raises(ClientClosedError, match="closed"):
        client.list_topics()


def test_a_call_that_waits_while_another_thread_closes_reports_it():
    """It once got a cancellation that no caller had requested."""
    begun, ended = threading.Event(), list[BaseException]()

    async def wait(_: AdminClient) -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            _blocking(wait)(client)
        except BaseException as error:
            ended.append(error)

    client = BlockingAdminClient("127.0.0.1:1")
    waiting = threading.Thread(target=call)
    waiting.start()
    assert begun.wait(30)
    client.close()
    waiting.join(30)
    assert [type(error) for error in ended] == [ClientClosedError]


def test_importing_the_client_imports_neither_a_broker_nor_what_it_needs():
    """The import must be quick, in a script or in a thousand workers."""
    program = (
        "import sys, lowtide\nlowtide.AdminClient\n"
        "heavy = ('uvloop', 'typer', 'rich', 'structlog', 'aiofiles', 'grpc', 'pyspark', 'pyarrow', "
        "'prometheus_client', 'sqlite3')\n"
        "ours = ('lowtide.broker', 'lowtide.storage', 'lowtide.metadata', 'lowtide.replication', 'lowtide.testing', "
        "'lowtide.cli')\n"
        "print([name for name in heavy + ours if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "error", [DeadlineExceededError("late"), ClientClosedError("closed"), BrokerAnsweredError(3, "t", "no")]
)
def test_errors_travel_between_processes(error: Exception):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))

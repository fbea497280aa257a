"""Threads that the system refuses to start."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator

import pytest

from lowtide.runtime.committer import ThreadCommitter
from lowtide.runtime.filesystem import is_passing
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import WorkFailedError, WorkStep
from lowtide.runtime.processes import ProcessHeavyWorker
from lowtide.runtime.threads import start_thread
from lowtide.runtime.worker import ThreadWorker
from tests.scenarios import played_by, run_async


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with RLIMIT_NPROC reached."""

    def refuse(_thread: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("no_threads")
def test_the_missing_resource_is_named():
    with pytest.raises(OSError, match="no thread for 'reader': raise the limit of processes") as caught:
        start_thread(threading.Thread(name="reader"))
    assert caught.value.errno == errno.EAGAIN
    assert is_passing(caught.value)


def test_a_thread_that_was_started_before_is_a_bug():
    thread = threading.Thread()
    start_thread(thread)
    thread.join()
    with pytest.raises(RuntimeError):
        start_thread(thread)


@pytest.mark.usefixtures("no_threads")
@played_by(run_async)
async def test_a_broker_that_gets_no_thread_fails_with_a_message() -> None:
    """These threads are started at the start of the broker, which reports an OSError."""
    loop = asyncio.get_running_loop()
    with pytest.raises(OSError, match="committer /d"):
        ThreadCommitter(MemoryFileSystem(), loop, "committer /d")
    with pytest.raises(OSError, match="worker-0"):
        ThreadWorker(loop)


def work(_filesystem: object, _argument: bytes) -> Iterator[WorkStep]:
    yield WorkStep(0)


class Listening:
    """Waits for the end."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[WorkFailedError | None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: bytes) -> None:
        raise AssertionError(message)

    def on_end(self, error: WorkFailedError | None) -> None:
        self.ended.set_result(error)


@pytest.mark.usefixtures("no_threads")
@played_by(run_async)
async def test_heavy_work_that_gets_no_thread_fails_and_may_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ProcessHeavyWorker(asyncio.get_running_loop())
    listening = Listening()
    worker.begin(work, b"", listening)
    assert not listening.ended.done(), "never reported within the call"
    error = await listening.ended
    assert "no thread" in str(error)
    started: list[str] = []
    monkeypatch.setattr("lowtide.runtime.processes.start_thread", lambda thread: started.append(thread.name))
    worker.begin(work, b"", Listening())
    assert started == ["heavy work 0"]

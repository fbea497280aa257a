"""Heavy work in its own processes: the real form of the `HeavyWorker` port.

A process starts when there is work and ends after some time without. It is the same Python without the broker: it has
only its pipes, opens what it needs, and runs at a lower priority (`NICENESS`) in the broker's session, because the
scheduler weighs priorities only within a session. Messages on the pipes are frames: a length of four bytes, big-endian,
a kind of one byte, and the rest.

| to the process | | from the process | |
|---|---|---|---|
| `w` | work: rate, name of the function, argument | `m` | a message |
| `c` | cancel the running work | `e` | the end, followed by the error if there was one |

Guards: no process outlives its broker. A thread in it waits for the pipe's end, which comes when the broker dies for
any reason, and ends the process at once. A process that dies loses only its current work.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Final

from lowtide.runtime.committer import Completions
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.heavy_work import NO_RATE_LIMIT, Work, WorkFailedError, WorkListener, WorkStep
from lowtide.runtime.threads import start_thread

NICENESS: Final = 10
"""A tenth of the processor's time if the broker wants all of it."""

IDLE_S: Final = 30.0
"""How long a process waits for the next work."""

_HEAD: Final = struct.Struct(">Ic")
_RATE: Final = struct.Struct(">dH")
_FRAME_BYTES_MAX: Final = 1 << 30


def _write_frame(stream: IO[bytes], kind: bytes, content: bytes) -> None:
    stream.write(_HEAD.pack(len(content), kind) + content)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Returns the next frame; None at the end, even within a frame."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    size, kind = _HEAD.unpack(head)
    assert size <= _FRAME_BYTES_MAX, size
    content = stream.read(size)
    return (kind, content) if len(content) == size else None


class ProcessHeavyWorker:
    """Up to `processes` worker processes, each with a thread here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, processes: int = 1, idle_s: float = IDLE_S) -> None:
        assert processes > 0
        self._completions = Completions(loop)
        self._submitted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle_s = idle_s
        self._attendants = [_Attendant(self, number) for number in range(processes)]
        self._closed = False

    @property
    def process_ids(self) -> list[int]:
        return [attendant.process.pid for attendant in self._attendants if attendant.process is not None]

    def begin(
        self, work: Work, argument: bytes, listener: WorkListener, bytes_per_second: float = NO_RATE_LIMIT
    ) -> _Work:
        assert not self._closed
        begun = _Work(f"{work.__module__}:{work.__qualname__}", argument, listener, bytes_per_second)
        refused = self._start_attendant()
        if refused is None or any(attendant.is_started for attendant in self._attendants):
            self._submitted.put(begun)
        else:
            self.end(begun, WorkFailedError(f"{begun.name} can't be begun: {refused}"))
        return begun

    def _start_attendant(self) -> OSError | None:
        """Starts one more thread, if allowed. Returns why that failed."""
        for attendant in self._attendants:
            try:
                if attendant.start_once():
                    break
            except OSError as error:
                return error
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for attendant in self._attendants:
                attendant.kill()
            for _ in self._attendants:
                self._submitted.put(None)
            for attendant in self._attendants:
                attendant.join()

    def next_work(self, timeout_s: float | None) -> _Work | None:
        """Waits for work; returns None if none came or none will come. For an attendant."""
        try:
            return self._submitted.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def tell(self, work: _Work, message: bytes) -> None:
        """Passes a message to the loop. For an attendant."""
        if not self._closed:
            self._completions.add([(work.listener.on_message, message)])

    def end(self, work: _Work, error: WorkFailedError | None) -> None:
        """Reports the end of the work to the loop. For an attendant."""
        if not self._closed:
            self._completions.add([(work.listener.on_end, error)])


class _Work:
    """Started work, shared by the loop and an attendant."""

    def __init__(self, name: str, argument: bytes, listener: WorkListener, bytes_per_second: float) -> None:
        self.name = name
        self.argument = argument
        self.listener = listener
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):
                    _write_frame(self._process.stdin, b"c", b"")

    def begin_in(self, process: subprocess.Popen[bytes]) -> bool:
        """Sends the work to a process, unless it is cancelled."""
        if self._was_cancelled():
            return False
        name = self.name.encode()
        assert process.stdin is not None
        # Outside of the lock: the pipe blocks until the process reads, which may still be starting.
        _write_frame(process.stdin, b"w", _RATE.pack(self.bytes_per_second, len(name)) + name + self.argument)
        with self._lock:
            self._process = process
        if self._was_cancelled():
            self.cancel()
        return True

    def _was_cancelled(self) -> bool:
        with self._lock:
            return self._is_cancelled

    def leave(self) -> None:
        """Detaches finished work, so that a late `cancel` doesn't hit the next one."""
        with self._lock:
            self._process = None


class _Attendant:
    """A thread that starts a process for work, talks to it, and ends it when idle."""

    def __init__(self, owner: ProcessHeavyWorker, number: int) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = owner
        self._thread = threading.Thread(target=self._run, name=f"heavy work {number}", daemon=True)
        self.is_started = False
        self._lock = threading.Lock()

    def start_once(self) -> bool:
        """Starts the thread, if needed. Errors: OSError; it may be tried again."""
        if self.is_started:
            return False
        start_thread(self._thread)
        self.is_started = True
        return True

    def kill(self) -> None:
        with self._lock:
            if self.process is not None:
                self.process.kill()

    def join(self) -> None:
        if self.is_started:
            self._thread.join()

    def _run(self) -> None:
        while not self._owner.is_closed:
            work = self._owner.next_work(None if self.process is None else self._owner._idle_s)  # noqa: SLF001 - one module
            if work is None:
                self._end_process()
                continue
            error: WorkFailedError | None = None
            try:
                self._attend(work)
            except (OSError, EOFError, ValueError) as failed:
                self._end_process()
                error = WorkFailedError(f"the process of {work.name} is gone, or can't be started: {failed}")
            except WorkFailedError as failed:
                error = failed
            work.leave()
            self._owner.end(work, error)
            del work
        self._end_process()

    def _attend(self, work: _Work) -> None:
        """Runs the work. Errors: WorkFailedError, OSError, EOFError."""
        process = self._started_process()
        if not work.begin_in(process):
            return
        assert process.stdout is not None
        while True:
            frame = _read_frame(process.stdout)
            if frame is None:
                raise EOFError(f"it ended with {process.wait()}")
            kind, content = frame
            if kind == b"m":
                self._owner.tell(work, content)
            elif content:
                raise WorkFailedError(content.decode(errors="replace"))
            else:
                return

    def _started_process(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._owner.is_closed:
                raise EOFError("the broker stops")
            if self.process is None:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "lowtide.runtime.heavy_process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONHASHSEED": "random"},
                )
            return self.process

    def _end_process(self) -> None:
        with self._lock:
            process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


# In the other process:


class _Orders:
    """Orders of the broker, read by a thread, so that the broker's end is always noticed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.cancelled = threading.Event()
        self.work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stream = stream

    def read(self) -> None:
        while (frame := _read_frame(self._stream)) is not None:
            kind, content = frame
            if kind == b"w":
                self.cancelled.clear()
                self.work.put(content)
            else:
                self.cancelled.set()
        os._exit(0)


def serve_heavy_work() -> None:
    """Runs one work after the other until the broker ends. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # From a terminal: the broker handles it and then ends this process.
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Prints must not reach the broker.
    orders = _Orders(sys.stdin.buffer)
    threading.Thread(target=orders.read, daemon=True).start()
    while True:
        order = orders.work.get()
        bytes_per_second, size = _RATE.unpack_from(order)
        name = order[_RATE.size : _RATE.size + size].decode()
        error = ""
        try:
            module, _, function = name.partition(":")
            steps = getattr(importlib.import_module(module), function)(OsFileSystem(), order[_RATE.size + size :])
            del order
            for message in _paced(steps, bytes_per_second, orders.cancelled):
                _write_frame(answers, b"m", message)
        except Exception as failed:  # noqa: BLE001 - the broker tells it
            error = repr(failed) or "it failed"
        _write_frame(answers, b"e", error.encode())


def _paced(steps: Iterator[WorkStep], bytes_per_second: float, cancelled: threading.Event) -> Iterator[bytes]:
    """Yields the messages of the steps, at the given rate, until cancelled."""
    began = time.monotonic()
    moved = 0
    for step in steps:
        if step.message is not None:
            yield step.message
        moved += step.moved_bytes
        ahead_s = moved / bytes_per_second - (time.monotonic() - began)
        if cancelled.wait(max(ahead_s, 0.0)) if ahead_s > 0 else cancelled.is_set():
            steps.close()  # type: ignore[attr-defined]  # of a generator
            return

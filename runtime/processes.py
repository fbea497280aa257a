"""Heavy work in processes of its own: the real form of the `HeavyWorker` port.

A process is started when there is work and ends when there has been none for a while. It is the same Python with
nothing of the broker in it: it has no descriptor but its pipes, opens what it needs by itself, and runs at a lower
priority (`NICENESS`) in the broker's session, for the scheduler weighs priorities only within one. What goes over the
pipes are frames: a length of four bytes, big-endian, then a kind of one byte, then the rest.

| to it | | from it | |
|---|---|---|---|
| `w` | work: rate, name of the function, argument | `m` | a message |
| `c` | cancel what runs | `e` | the end; behind it the error, if there was one |

Guards: none outlives its broker. A thread in it waits for the pipe's end, which comes when the broker dies of whatever
it be, and ends the process at once. A process that dies takes only its present work along.
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

from lowtide.runtime.completions import Completions
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.heavy_work import NO_RATE_LIMIT, Step, Work, WorkFailedError, WorkListener
from lowtide.runtime.threads import start_thread

NICENESS: Final = 10
"""A tenth of the processor's time where the broker wants all of it."""

IDLE_S: Final = 30.0
"""How long a process waits for the next work."""

_HEAD: Final = struct.Struct(">Ic")
_RATE: Final = struct.Struct(">dH")
_FRAME_BYTES_MAX: Final = 1 << 30


def _write_frame(stream: IO[bytes], kind: bytes, content: bytes) -> None:
    stream.write(_HEAD.pack(len(content), kind) + content)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next one; None at the end, which may come in the middle of one."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    size, kind = _HEAD.unpack(head)
    assert size <= _FRAME_BYTES_MAX, size
    content = stream.read(size)
    return (kind, content) if len(content) == size else None


class ProcessHeavyWorker:
    """Up to `processes` of them, each with a thread here that talks to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, processes: int = 1, idle_s: float = IDLE_S) -> None:
        assert processes > 0
        self._completions = Completions(loop)
        self._submitted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle_s = idle_s
        self._attendants = [_Attendant(self, number) for number in range(processes)]
        self._closed = False

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run now."""
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
        """Starts one more thread, if there may be another. Returns why that failed."""
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
        """For an attendant: waits for work; None when none came, or none is to come any more."""
        try:
            return self._submitted.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def tell(self, work: _Work, message: bytes) -> None:
        """From an attendant: a message for the loop."""
        if not self._closed:
            self._completions.add([(work.listener.on_message, message)])

    def end(self, work: _Work, error: WorkFailedError | None) -> None:
        """From an attendant: the work is over."""
        if not self._closed:
            self._completions.add([(work.listener.on_end, error)])


class _Work:
    """Work that was begun, as the loop and an attendant see it."""

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
            self._pass_on()

    def begin_in(self, process: subprocess.Popen[bytes]) -> bool:
        """Sends the work to a process, unless it is cancelled already."""
        if self._was_cancelled():
            return False
        name = self.name.encode()
        assert process.stdin is not None
        # Outside of the lock: the pipe takes it only as fast as the process, which may just begin, reads it.
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
        """It is over: a late `cancel` mustn't hit the next."""
        with self._lock:
            self._process = None

    def _pass_on(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                _write_frame(self._process.stdin, b"c", b"")


class _Attendant:
    """A thread that starts a process when there is work, talks to it, and ends it when there is none."""

    def __init__(self, owner: ProcessHeavyWorker, number: int) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = owner
        self._thread = threading.Thread(target=self._run, name=f"heavy work {number}", daemon=True)
        self.is_started = False
        self._lock = threading.Lock()

    def start_once(self) -> bool:
        """Starts the thread, if that hasn't been done. Errors: OSError; it may be tried again."""
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
        """Has the work done. Errors: WorkFailedError, OSError, EOFError."""
        process = self._process_at_hand()
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

    def _process_at_hand(self) -> subprocess.Popen[bytes]:
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


# ---------------------------------------------------------------------- in the other process


class _Orders:
    """What comes from the broker, read by a thread, so that its end is noticed whatever the process does."""

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
    """What the process does: one work after the other, until the broker ends. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of a terminal: the broker is asked to end, and then so is this.
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Whatever prints mustn't speak to the broker.
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


def _paced(steps: Iterator[Step], bytes_per_second: float, cancelled: threading.Event) -> Iterator[bytes]:
    """The messages of the steps, taken no faster than the rate allows, until it is cancelled."""
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

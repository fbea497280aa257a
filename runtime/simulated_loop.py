"""A deterministic asyncio event loop: virtual time, seeded randomness, an in-memory network, hosts that can be killed.

asyncio code (tasks, futures, timeouts, protocols, streams) runs on it unchanged, and the same seed gives the same run,
event by event, as `trace_digest` proves. Waiting costs nothing, because the clock jumps to the next timer. If nothing
is scheduled, the loop raises instead of hanging. Threads are not allowed and raise too.

A `SimulatedNode` (`simulated_node`) is a process on a host of that name.

A run must not depend on what no seed controls: the order of sets of strings, `id`, and when cycles are collected.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, TypeVarTuple

from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_network import LOCAL_HOST, SimulatedNetwork, SimulatedServer, unsupported
from lowtide.runtime.simulated_node import HostLoop, SimulatedNode, current_node, node_in
from lowtide.runtime.simulated_transport import SimulatedTransport

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = ParamSpec("P")
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

TIME_LIMIT_S: Final = 24 * 3600.0
"""The virtual time after which a simulation counts as hanging."""

PASSES_PER_INSTANT_MAX: Final = 100_000
"""Passes of the loop at one instant after which callbacks count as calling each other for ever."""

COROUTINE_CLOSES_MAX: Final = 10
"""How often a coroutine of a dead node may answer `close` by awaiting something else."""

PENDING_NAMES_MAX: Final = 20

CANCELLED_TIMERS_MIN: Final = 100
CANCELLED_TIMERS_SHARE: Final = 0.5
"""Cancelled timers are dropped if they exceed this share of at least `CANCELLED_TIMERS_MIN`. Source: BaseEventLoop."""


class SimulatedDeadlockError(RuntimeError):
    """The simulation waits for an event that cannot happen, or did not happen within the limits of this module."""


class SimulatedLoop(HostLoop):
    """An event loop on virtual time. `seed` determines all random choices in loop and network."""

    # Of BaseEventLoop, and unknown to the type checker.
    _check_closed: Callable[[], None]
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _thread_id: int | None
    _timer_cancelled_count: int

    def __init__(self, seed: int, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        super().__init__()
        self.random = Random(seed)
        self.network = SimulatedNetwork(self, self.random)
        self.nodes: dict[str, SimulatedNode] = {}
        self._unhandled: list[BaseException] = []
        self.trace_digest = 0
        self.trace_lines: list[str] | None = None
        self._now_s = 0.0
        self._time_limit_s = time_limit_s
        self._passes_count = 0
        # Strong references, so that no pending task is collected at an uncontrolled moment; in the order of their
        # start.
        self._tasks: dict[asyncio.Task[Any], SimulatedNode | None] = {}
        self.kept: list[object] = []
        """Parts of processes. While they are kept, Python cannot collect them and run their `finally` blocks."""
        # Tasks that raised: kept, so that "never retrieved" is found at the end and not at an uncontrolled collection.
        self._failed: list[asyncio.Task[Any]] = []
        self.ran: set[SimulatedNode | None] = set()
        """The processes that have run at this instant; None stands for the simulation itself."""
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda _loop, context: self._on_unhandled(context))

    def start_node(self, name: str) -> SimulatedNode:
        """Starts a process on host `name`, which has no live one."""
        former = self.nodes.get(name)
        assert former is None or not former.is_alive, former
        node = self.nodes[name] = SimulatedNode(self, name)
        self.trace(f"{name} started")
        self.network.on_node_started(name)
        return node

    def current_host(self) -> str:
        node = current_node()
        return LOCAL_HOST if node is None else node.name

    def node_of(self, context: Context) -> SimulatedNode | None:
        return node_in(context)

    def on_node_killed(self, node: SimulatedNode, *, silently: bool) -> None:
        self.trace(f"{node.name} killed{' silently' if silently else ''}")
        for handle in [*self._ready, *self._scheduled, *(node.parked or ())]:
            if _node_of_handle(handle) is node:
                handle.cancel()
        node.parked = None
        self.network.on_node_killed(node, silently=silently)

    def on_node_paused(self, node: SimulatedNode) -> list[asyncio.Handle]:
        self.trace(f"{node.name} paused")
        parked: list[asyncio.Handle] = []
        for index, handle in enumerate(self._ready):
            if not handle.cancelled() and _node_of_handle(handle) is node:
                # Its place stays taken: the loop may be iterating.
                self._ready[index] = _nothing(self)
                parked.append(handle)
        timers = [timer for timer in self._scheduled if not timer.cancelled() and _node_of_handle(timer) is node]
        for timer in sorted(timers):
            self._take_timer(timer)
            parked.append(timer)
        return parked

    def on_node_resumed(self, node: SimulatedNode, parked: list[asyncio.Handle]) -> None:
        self.trace(f"{node.name} resumed")
        for handle in parked:
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._scheduled, handle)
                handle._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop.call_at does
            else:
                self._ready.append(handle)

    def _take_timer(self, timer: asyncio.TimerHandle) -> None:
        # By identity: timers of the same moment and callback are equal.
        self._scheduled[:] = [other for other in self._scheduled if other is not timer]
        heapq.heapify(self._scheduled)
        timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - cancelling it is then not counted

    def trace(self, event: str) -> None:
        """Adds an event to the run's digest, and to `trace_lines` if that is a list."""
        line = f"{self._now_s:.9f} {event}"
        self.trace_digest = zlib.crc32(line.encode(), self.trace_digest)
        if self.trace_lines is not None:
            self.trace_lines.append(line)

    def _on_unhandled(self, context: dict[str, Any]) -> None:
        """Keeps an unhandled error for `run_simulation` to raise, unless it results from a simulated death."""
        error = context.get("exception")
        if isinstance(error, SimulatedCrashError):
            return
        handle = context.get("handle")
        node = None if handle is None else _node_of_handle(handle)
        if node is None or node.is_alive:
            self._unhandled.append(error if error is not None else RuntimeError(context["message"]))

    def failures(self) -> list[BaseException]:
        """Returns exceptions of callbacks and of tasks that were not awaited so far, except those of dead nodes."""
        lost = [error for task in self._failed if task._log_traceback and (error := task._exception) is not None]  # noqa: SLF001 - see _failed
        return [*self._unhandled, *lost]

    def time(self) -> float:
        return self._now_s

    def advance(self, timeout_s: float | None) -> None:
        """Moves time to the next timer, `timeout_s` away; None means that there is none."""
        if timeout_s is None:
            raise SimulatedDeadlockError(f"nothing is scheduled, and these wait: {self._pending_names()}")
        if timeout_s <= 0:
            self._passes_count += 1
            if self._passes_count > PASSES_PER_INSTANT_MAX:
                raise SimulatedDeadlockError(f"callbacks call each other for ever; tasks: {self._pending_names()}")
            return
        self._passes_count = 0
        self.ran.clear()
        self._now_s = max(self._now_s, self._scheduled[0].when())  # timeout_s is capped, and slightly inexact
        if self._now_s > self._time_limit_s:
            raise SimulatedDeadlockError(f"not done after {self._time_limit_s} s; these wait: {self._pending_names()}")

    def _pending_names(self) -> str:
        names = [f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in self._tasks]
        return ", ".join(names[:PENDING_NAMES_MAX]) or "no task"

    def _run_once(self) -> None:
        """Runs one pass like BaseEventLoop, in the same order, without what only a real loop needs."""
        self._drop_cancelled()
        ready, scheduled = self._ready, self._scheduled
        if ready or self._stopping:
            self.advance(0)
        else:
            self.advance(max(0.0, scheduled[0].when() - self._now_s) if scheduled else None)
        end_s = self._now_s + self._clock_resolution
        while scheduled and scheduled[0].when() < end_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                self.ran.add(_node_of_handle(handle))
                handle._run()  # noqa: SLF001 - as BaseEventLoop does

    def _drop_cancelled(self) -> None:
        """Drops cancelled timers: all if there are many, else those that would be next."""
        scheduled = self._scheduled
        if (
            len(scheduled) > CANCELLED_TIMERS_MIN
            and self._timer_cancelled_count / len(scheduled) > CANCELLED_TIMERS_SHARE
        ):
            for timer in scheduled:
                if timer.cancelled():
                    timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
            scheduled[:] = [timer for timer in scheduled if not timer.cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
            return
        while scheduled and scheduled[0].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()
        handle = asyncio.Handle(callback, args, self, context)
        node = _node_of_handle(handle)
        if node is None or (node.is_alive and node.parked is None):
            self._ready.append(handle)
        elif node.parked is not None:
            node.parked.append(handle)
        else:
            handle.cancel()
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        handle = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)
        handle._scheduled = True  # noqa: SLF001 - as BaseEventLoop does
        node = _node_of_handle(handle)
        if node is not None:
            if not node.is_alive:
                handle.cancel()
            elif node.parked is not None:
                self._take_timer(handle)
                node.parked.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._thread_id not in {None, threading.get_ident()}:
            raise RuntimeError(
                "a thread calls into the simulation: what it does depends on the machine, not on the seed"
            )
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        raise RuntimeError(f"{func!r} would run in a thread, which no seed governs")

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if context is None:
            context = copy_context()
        task = super().create_task(coro, name=name, context=context, **options)
        if not task.done():
            self._tasks[task] = self.node_of(context)
            # An empty context, so that it is called for a dead node's task too.
            task.add_done_callback(self._on_task_done, context=Context())
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        node = self._tasks.pop(task)
        error = None if task.cancelled() else task._exception  # noqa: SLF001 - exception() would mark it as retrieved
        if error is not None:
            if isinstance(error, SimulatedCrashError) or (node is not None and not node.is_alive):
                task.exception()
            else:
                self._failed.append(task)

    def close(self) -> None:
        """Closes the loop, and silently closes unfinished coroutines, mainly those of dead nodes."""
        if self.is_running() or self.is_closed():
            super().close()
            return
        super().close()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio.gather does
            # A `finally` that awaits makes the coroutine refuse the first time.
            for _ in range(COROUTINE_CLOSES_MAX):
                with suppress(BaseException):
                    task.get_coro().close()
                    break
        self._tasks.clear()
        for task in self._failed:
            task._log_traceback = False  # noqa: SLF001 - `failures` has reported it
        self._failed.clear()

    def _write_to_self(self) -> None: ...

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        backlog: int = 100,
        start_serving: bool = True,
        **options: Any,
    ) -> SimulatedServer:
        del backlog
        unsupported({**options, "start_serving=False": not start_serving})
        return self.network.listen(protocol_factory, host, port or 0, copy_context())

    async def create_connection(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[SimulatedTransport, ProtocolT]:
        unsupported(options)
        assert host is not None
        assert port is not None
        return await self.network.connect(protocol_factory, host, port, copy_context())


def _node_of_handle(handle: asyncio.Handle) -> SimulatedNode | None:
    # A handle's context has no public accessor, and the type checker doesn't know it.
    context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
    return node_in(context)


def _nothing(loop: SimulatedLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop, Context())
    handle.cancel()
    return handle


class _Timer(asyncio.TimerHandle):
    """A timer that is compared by its time only."""

    __slots__ = ()
    _scheduled: bool
    _when: float

    def __lt__(self, other: _Timer) -> bool:  # type: ignore[override]
        return self._when < other._when


def run_simulation(
    main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], seed: int, *, time_limit_s: float = TIME_LIMIT_S
) -> T:
    """Runs `main(loop)` on a fresh simulated loop and returns its result. Remaining tasks are dropped, as if killed.

    Errors: SimulatedDeadlockError; BaseExceptionGroup if callbacks or unawaited tasks failed; whatever `main` raises,
    with notes of those failures.
    """
    loop = SimulatedLoop(seed, time_limit_s=time_limit_s)
    try:
        result = loop.run_until_complete(main(loop))
        if failures := loop.failures():
            raise BaseExceptionGroup(  # noqa: TRY301 - noted below
                f"unhandled failures, with seed {seed}", failures
            )
    except BaseException as error:
        error.add_note(f"seed {seed}, at virtual time {loop.time():.6f} s")
        if not isinstance(error, BaseExceptionGroup):
            for failure in loop.failures():
                error.add_note(f"before, and not handled: {failure!r}")
        raise
    finally:
        loop.close()
    return result

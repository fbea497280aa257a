"""The simulated loop: virtual time, determinism, deadlocks, killed processes, no threads."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.runtime.simulated_loop import SimulatedDeadlockError, SimulatedLoop, run_simulation
from tests.scenarios import played_by


def test_waiting_takes_no_time_and_virtual_time_is_exact() -> None:
    async def main(loop: SimulatedLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(80_000)
        await asyncio.gather(*[asyncio.sleep(second) for second in (5, 1, 3)])
        return loop.time()

    began = time.process_time()
    assert run_simulation(main, 1) == 3605
    assert time.process_time() - began < 5


def test_a_day_is_passed_in_one_jump() -> None:
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.sleep(10 * 86_400)
        return loop.time()

    assert run_simulation(main, 1, time_limit_s=11 * 86_400) == 864_000


def test_timers_of_one_instant_run_in_the_order_of_their_time_and_ready_calls_in_that_of_scheduling() -> None:
    async def main(loop: SimulatedLoop) -> list[int]:
        ran: list[int] = []
        for number in (3, 1, 2):
            loop.call_later(number / 1000, ran.append, number)
        for number in (10, 11, 12):
            loop.call_soon(ran.append, number)
        await asyncio.sleep(1)
        return ran

    assert run_simulation(main, 1) == [10, 11, 12, 1, 2, 3]


def test_a_deadlock_is_reported_with_the_tasks_that_wait() -> None:
    async def waits_for_ever(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimulatedDeadlockError, match="waits_for_ever") as caught:
        run_simulation(waits_for_ever, 77)
    assert any("seed 77" in note for note in caught.value.__notes__)


def test_a_periodic_timer_does_not_hide_a_deadlock() -> None:
    async def main(loop: SimulatedLoop) -> None:
        def tick() -> None:
            loop.call_later(1, tick)

        tick()
        await loop.create_future()

    with pytest.raises(SimulatedDeadlockError, match="not done after 100"):
        run_simulation(main, 1, time_limit_s=100)


def test_callbacks_that_call_each_other_without_end_are_found() -> None:
    async def main(loop: SimulatedLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await loop.create_future()

    with pytest.raises(SimulatedDeadlockError, match="for ever"):
        run_simulation(main, 1)


@pytest.mark.parametrize("how", ["callback", "task"])
def test_an_unhandled_failure_fails_the_simulation(how: str) -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    async def main(loop: SimulatedLoop) -> None:
        if how == "callback":
            loop.call_soon(int, "a bug")
        else:
            loop.create_task(fail())
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup, match="seed 5") as caught:
        run_simulation(main, 5)
    assert caught.group_contains(ValueError, match="a bug")


def test_a_failed_task_is_reported_although_it_is_not_collected() -> None:
    """A task in a cycle is collected when the collector runs, which does not depend on the seed."""

    async def fail() -> None:
        itself = asyncio.current_task()
        raise ValueError(f"a bug in {itself is not None}")

    async def main(loop: SimulatedLoop) -> None:
        loop.create_task(fail())
        await asyncio.sleep(1)

    gc.disable()
    try:
        with pytest.raises(ExceptionGroup) as caught:
            run_simulation(main, 1)
    finally:
        gc.enable()
    assert caught.group_contains(ValueError, match="a bug")


def test_a_failure_that_is_awaited_later_is_handled() -> None:
    async def fail() -> None:
        raise ValueError("expected")

    async def main(loop: SimulatedLoop) -> None:
        task = loop.create_task(fail())
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="expected"):
            await task

    run_simulation(main, 1)


@played_by(run_simulation, 1)
async def test_threads_are_refused(loop: SimulatedLoop, /) -> None:
    with pytest.raises(RuntimeError, match="thread"):
        await asyncio.to_thread(int)
    with pytest.raises(RuntimeError, match="thread"):
        await loop.run_in_executor(None, int)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="thread"):
        pool.submit(lambda: loop.call_soon_threadsafe(int)).result()
    loop.call_soon_threadsafe(int)


def in_node(
    body: Callable[[list[str]], Awaitable[None]], after: Callable[[SimulatedLoop, list[str]], Awaitable[None]]
) -> list[str]:
    """Run `body` in a node, kill the node after a second, run `after`, and return the events of both."""

    async def main(loop: SimulatedLoop) -> list[str]:
        events: list[str] = []
        node = loop.start_node("broker-0")

        async def task() -> None:
            await body(events)

        node.spawn(task())
        await asyncio.sleep(1)
        node.kill()
        node.kill()
        await after(loop, events)
        return list(events)

    return run_simulation(main, 1)


async def sleep_long(_loop: SimulatedLoop, _events: list[str]) -> None:
    await asyncio.sleep(100)


def test_a_killed_node_runs_nothing_any_more_not_even_finally() -> None:
    async def body(events: list[str]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, events.append, "timer before")
        loop.call_later(1.5, events.append, "timer after")

        async def child() -> None:
            await asyncio.sleep(2)
            events.append("child")

        task = loop.create_task(child())
        try:
            await task
        except BaseException as error:
            events.append(f"except {error!r}")
            raise
        finally:
            events.append("finally")

    assert in_node(body, sleep_long) == ["timer before"]


def test_events_of_others_do_not_wake_a_killed_node() -> None:
    """The answer of a surviving node, or of a port, must not run code of the killed one."""
    shared: list[asyncio.Future[None]] = []

    async def body(events: list[str]) -> None:
        future = asyncio.get_running_loop().create_future()
        shared.append(future)
        future.add_done_callback(lambda _: events.append("callback"))
        await future
        events.append("woken")

    async def after(_: SimulatedLoop, events: list[str]) -> None:
        shared.pop().set_result(None)
        await asyncio.sleep(1)
        events.append("survivor")

    assert in_node(body, after) == ["survivor"]


def test_a_node_may_kill_itself_and_the_rest_of_the_callback_is_all_that_runs() -> None:
    async def main(loop: SimulatedLoop) -> list[str]:
        events: list[str] = []
        node = loop.start_node("broker-0")

        async def body() -> None:
            node.kill()
            events.append("same callback")
            await asyncio.sleep(0)
            events.append("later callback")

        node.spawn(body())
        await asyncio.sleep(1)
        return events

    assert run_simulation(main, 1) == ["same callback"]


def test_a_node_starts_again_under_its_name_as_a_new_process() -> None:
    async def main(loop: SimulatedLoop) -> list[str]:
        events: list[str] = []

        async def life(number: int) -> None:
            events.append(f"{loop.current_host()} {number}")
            await asyncio.sleep(2)
            events.append(f"end {number}")

        first = loop.start_node("broker-0")
        with pytest.raises(AssertionError):
            loop.start_node("broker-0")
        first.spawn(life(1))
        await asyncio.sleep(1)
        first.kill()
        loop.start_node("broker-0").spawn(life(2))
        await asyncio.sleep(5)
        assert loop.current_host() == "localhost"
        assert loop.nodes["broker-0"].run(loop.current_host) == "broker-0"
        return events

    assert run_simulation(main, 1) == ["broker-0 1", "broker-0 2", "end 2"]


def test_the_disk_may_kill_the_node_in_the_middle_of_a_step() -> None:
    """This is how a simulation crashes a broker between any two changes of its disk."""

    async def main(loop: SimulatedLoop) -> list[str]:
        disk, node = MemoryFileSystem(loop.random), loop.start_node("broker-0")
        disk.make_directories("/d")
        disk.on_crash = node.kill
        disk.crash_at = disk.operation_count + 4

        async def body() -> None:
            try:
                for name in "abcdef":
                    disk.make_directories(f"/d/{name}")
                    await asyncio.sleep(1)
            finally:
                disk.make_directories("/d/cleaned-up")

        node.spawn(body())
        node.run(loop.call_later, 0.5, disk.make_directories, "/d/x")
        node.run(loop.call_later, 1.5, disk.make_directories, "/d/never")
        await asyncio.sleep(10)
        assert not node.is_alive
        with pytest.raises(SimulatedCrashError):
            disk.make_directories("/d/y")
        disk.crash_process()
        return disk.listdir("/d")

    assert run_simulation(main, 1) == ["a", "b", "x"]


@played_by(run_simulation, 1)
async def test_leftovers_of_a_run_are_dropped_without_a_warning(loop: SimulatedLoop, /) -> None:
    """Killed and unfinished tasks must cause no warning, neither now nor when they are collected."""

    async def awaits_in_finally() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(100)

    async def raises_in_finally() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("this is not reported")

    node = loop.start_node("broker-0")
    for coroutine in (awaits_in_finally, raises_in_finally):
        node.spawn(coroutine())
        loop.create_task(coroutine())
    await asyncio.sleep(1)
    node.kill()
    loop.create_task(awaits_in_finally())


def test_the_trace_can_be_read_and_summed_up() -> None:
    async def main(loop: SimulatedLoop) -> tuple[int, list[str]]:
        loop.trace_lines = []
        await asyncio.sleep(0.5)
        loop.trace("something happened")
        return loop.trace_digest, loop.trace_lines

    digest, lines = run_simulation(main, 1)
    assert lines == ["0.500000000 something happened"]
    assert digest != 0


def test_a_paused_process_does_nothing_and_then_everything_that_is_due() -> None:
    async def main(loop: SimulatedLoop) -> list[tuple[str, float]]:
        ran: list[tuple[str, float]] = []
        node = loop.start_node("paused")

        def note(name: str) -> None:
            ran.append((name, loop.time()))

        async def ticking() -> None:
            for number in range(4):
                await asyncio.sleep(1)
                note(f"tick {number}")

        node.spawn(ticking())
        cancelled = node.run(loop.call_later, 3, note, "cancelled")
        node.run(loop.call_later, 9, note, "later")
        await asyncio.sleep(1.5)
        node.run(loop.call_soon, note, "was ready")
        node.pause()
        node.pause()
        assert node.is_paused
        cancelled.cancel()
        node.run(loop.call_soon, note, "soon")
        node.run(loop.call_later, 0.25, note, "timer")
        await asyncio.sleep(5)
        assert ran == [("tick 0", 1)]
        node.resume()
        node.resume()
        await asyncio.sleep(10)
        return ran

    ran = run_simulation(main, 1)
    assert ran == [
        ("tick 0", 1),
        ("was ready", 6.5),
        ("soon", 6.5),
        ("timer", 6.5),
        ("tick 1", 6.5),
        ("tick 2", 7.5),
        ("tick 3", 8.5),
        ("later", 9),
    ]


def test_a_paused_process_still_accepts_connections_and_bytes_and_can_be_killed() -> None:
    async def main(loop: SimulatedLoop) -> bytes:
        node = loop.start_node("server")
        received = bytearray()

        async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                received.extend(data)

        await node.spawn(asyncio.start_server(serve, "server", 1))
        node.pause()
        _, writer = await asyncio.open_connection("server", 1)
        writer.write(b"waits")
        await asyncio.sleep(1)
        assert received == b""
        node.resume()
        await asyncio.sleep(1)
        assert received == b"waits"
        node.pause()
        writer.write(b"never")
        await asyncio.sleep(1)
        node.kill()
        node.resume()
        await asyncio.sleep(1)
        writer.close()
        return bytes(received)

    assert run_simulation(main, 1) == b"waits"

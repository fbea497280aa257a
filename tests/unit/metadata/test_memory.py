"""The simulator's store: the result of a crash, failing disks, group commit, and the same run for the same seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.metadata.local import STALL_MS
from lowtide.metadata.memory import MemoryClient, MemoryDisk, MemoryStore
from lowtide.metadata.store import (
    AmbiguousError,
    Compare,
    Delete,
    LeaseGoneError,
    Put,
    TransactionResult,
    UnavailableError,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from tests.scenarios import played_by


def play(scenario: Callable[[SimulatedLoop, MemoryDisk], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    return run_simulation(lambda loop: scenario(loop, MemoryDisk()), seed)


def open_store(loop: SimulatedLoop, disk: MemoryDisk, **options: Any) -> MemoryStore:
    return MemoryStore(disk, clock=SimulatedClock(loop), random=loop.random, loop=loop, **options)


def test_a_crash_keeps_what_was_answered_and_may_keep_what_was_not() -> None:
    """Over many seeds all three cases of a crash occur: nothing written, written but not answered, answered."""
    outcomes = set()

    async def scenario(loop: SimulatedLoop, disk: MemoryDisk) -> tuple[bool, bool]:
        store = open_store(loop, disk, write_ms=(1.0, 10.0))
        writing = loop.create_task(store.transact([], [Put(b"a", b"1"), Put(b"b", b"1")]))
        await asyncio.sleep(loop.random.uniform(0, 0.011))
        store.crash()
        again = open_store(loop, disk)
        pairs, _ = await again.range(b"")
        assert len(pairs) in {0, 2}, "a transaction is there whole or not at all"
        assert not (writing.done() and not pairs), "an answered transaction is there"
        return writing.done(), bool(pairs)

    for seed in range(60):
        outcomes.add(play(scenario, seed))
    assert outcomes == {(False, False), (False, True), (True, True)}


def test_the_same_seed_gives_the_same_run() -> None:
    """Concurrent writers with leases that end: the disk ends up equal, byte for byte and in every revision."""

    async def writer(store: MemoryStore, number: int) -> None:
        for round_number in range(10):
            lease = await store.lease_grant(5 + number)
            await store.transact(
                [], [Put(b"%d" % number, b"%d" % round_number), Put(b"leased-%d" % number, b"", lease)]
            )
            await asyncio.sleep(number / 300)

    async def scenario(loop: SimulatedLoop, disk: MemoryDisk) -> MemoryDisk:
        store = open_store(loop, disk)
        await asyncio.gather(*(writer(store, number) for number in range(8)))
        return disk

    first, second, other = play(scenario, 3), play(scenario, 3), play(scenario, 4)
    assert list(first.keys.items()) == list(second.keys.items())
    assert first.revision == second.revision
    assert first.writes != other.writes or first.keys != other.keys, "the seed has an effect"


@played_by(play)
async def test_transactions_that_wait_share_the_next_write(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """A hundred concurrent transactions cost two or three writes, and still have a revision each."""
    store = open_store(loop, disk)
    results = await asyncio.gather(*(store.transact([], [Put(b"%d" % number, b"")]) for number in range(100)))
    assert [result.revision for result in results] == list(range(1, 101))
    assert disk.writes == 2


@played_by(play)
async def test_a_transaction_sees_those_before_it_in_its_group(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """Group commit must not let two creators of one key both win."""
    store = open_store(loop, disk)
    absent = Compare(b"k", "create", "==", 0)
    first, *others = await asyncio.gather(
        store.transact([], [Put(b"busy", b"")]),
        *(store.transact([absent], [Put(b"k", b"%d" % number)]) for number in range(5)),
    )
    assert first.succeeded
    assert [result.succeeded for result in others] == [True, False, False, False, False]


@played_by(play)
async def test_nothing_is_visible_before_it_is_durable(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """Readers and watchers see a change only when its writer may receive its answer."""
    store = open_store(loop, disk, write_ms=(10.0, 10.0))
    writing = loop.create_task(store.transact([], [Put(b"k", b"")]))
    await asyncio.sleep(0.009)
    assert disk.writes == 1
    assert await store.range(b"") == ([], 0)
    assert await writing == TransactionResult(succeeded=True, revision=1)
    assert await store.get(b"k") is not None


@played_by(play)
async def test_a_full_disk_leaves_no_trace(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """The whole group is refused, the next one passes, and revisions have no gap."""
    store = open_store(loop, disk)
    disk.fail_next(applied=False)
    with pytest.raises(UnavailableError):
        await store.transact([], [Put(b"k", b"1")])
    assert await store.get(b"k") is None
    assert (await store.transact([Compare(b"k", "create", "==", 0)], [Put(b"k", b"2")])).revision == 1


@played_by(play)
async def test_a_lease_ends_although_the_disk_was_full(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """The lease ends for its holder at once.

    Its keys are deleted as soon as possible, otherwise no broker could register again.
    """
    store = open_store(loop, disk)
    lease = await store.lease_grant(1000)
    await store.transact([], [Put(b"k", b"", lease)])
    disk.fail_next(applied=False)
    await asyncio.sleep(1.5)
    assert await store.get(b"k") is not None
    with pytest.raises(LeaseGoneError):
        await store.lease_keep_alive(lease)
    await asyncio.sleep(1)
    assert await store.get(b"k") is None


@played_by(play)
async def test_after_a_failed_write_nothing_is_answered_any_more(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """The outcome is unknown: the group is ambiguous, waiting and later transactions are refused, watches end."""
    store = open_store(loop, disk)
    watching = loop.create_task(anext(store.watch(b"", 1)))
    disk.fail_next(applied=None)
    written = loop.create_task(store.transact([], [Put(b"k", b"1")]))
    await asyncio.sleep(0)
    waiting = loop.create_task(store.transact([], [Put(b"l", b"1")]))
    outcomes = await asyncio.gather(written, waiting, watching, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AmbiguousError, UnavailableError, UnavailableError]
    with pytest.raises(UnavailableError):
        await store.get(b"k")


def test_a_process_that_was_suspended_does_not_lose_its_leases() -> None:
    """Suspended for longer than every lease: no renewal was possible, so that time does not count.

    A lease without renewals still ends.
    """

    class StoppableClock(SimulatedClock):
        stood_still_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.stood_still_ms

    async def scenario(loop: SimulatedLoop, disk: MemoryDisk) -> None:
        clock = StoppableClock(loop)
        store = MemoryStore(disk, clock=clock, random=loop.random, loop=loop)
        lease = await store.lease_grant(1000)
        await store.transact([], [Put(b"k", b"", lease)])
        await asyncio.sleep(0.9)
        clock.stood_still_ms += 10 * STALL_MS
        await asyncio.sleep(0.15)
        await store.lease_keep_alive(lease)
        assert await store.get(b"k") is not None
        await asyncio.sleep(1.1)
        assert await store.get(b"k") is None

    play(scenario)


@played_by(play)
async def test_a_client_that_is_cut_off_receives_nothing_and_misses_nothing(
    loop: SimulatedLoop, disk: MemoryDisk, /
) -> None:
    """Behind a partition calls fail, watches are silent; afterwards every revision arrives, in order."""
    store = open_store(loop, disk)
    client = MemoryClient(store)
    revisions: list[int] = []

    async def follow() -> None:
        async for batch in client.watch(b"", 1):
            revisions.append(batch.revision)

    loop.create_task(follow())
    client.cut = True
    for number in range(5):
        await store.transact([], [Put(b"k", b"%d" % number)])
    await store.transact([], [Delete(b"k")])
    with pytest.raises(UnavailableError):
        await client.get(b"k")
    assert revisions == []
    client.cut = False
    await asyncio.sleep(0.1)
    assert revisions == [1, 2, 3, 4, 5, 6]


@played_by(play)
async def test_a_store_survives_the_process_that_called_it(loop: SimulatedLoop, disk: MemoryDisk, /) -> None:
    """A shared store's own timers must not end with a client in the middle of a write."""
    store = open_store(loop, disk, write_ms=(5.0, 5.0))
    node = loop.start_node("client")

    async def write() -> None:
        lease = await store.lease_grant(100)
        await store.transact([], [Put(b"k", b"", lease)])

    node.spawn(write())
    await asyncio.sleep(0.001)
    node.kill()
    assert (await store.transact([], [Put(b"l", b"")])).revision == 2
    await asyncio.sleep(0.2)
    assert [pair.key for pair in (await store.range(b""))[0]] == [b"l"]

"""What every metadata store promises, checked on each engine: sessions must not be able to distinguish them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import pytest

from lowtide.metadata.store import (
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS,
    OPERATION_BYTES,
    Batch,
    CompactedError,
    Compare,
    Delete,
    Get,
    KeyEvent,
    KeyValue,
    LeaseGoneError,
    MetadataStore,
    Put,
    TransactionResult,
    UnavailableError,
)

from .machines import Machine, Run, put

RENEW_MS = 100


async def take(batches: AsyncGenerator[Batch, None], count: int) -> list[Batch]:
    taken: list[Batch] = []
    async with aclosing(batches):
        while len(taken) < count:
            taken.append(await anext(batches))
    return taken


async def until(condition: Callable[..., Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.005)


def test_a_transaction_compares_before_it_writes(run: Run) -> None:
    """Compare-and-swap: of two creators one wins, and the other reads its value."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        absent = Compare(b"k", "create", "==", 0)
        first = await store.transact([absent], [Put(b"k", b"1")], [Get(b"k")])
        second = await store.transact([absent], [Put(b"k", b"2")], [Get(b"k")])
        now = machine.base + 1
        assert first == TransactionResult(succeeded=True, revision=now)
        assert second == TransactionResult(succeeded=False, revision=now, gets=(KeyValue(b"k", b"1", now, now),))
        assert await store.get(b"k") == KeyValue(b"k", b"1", now, now)

    run(scenario)


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"k", "create", "==", 1), True),
        (Compare(b"k", "create", "!=", 1), False),
        (Compare(b"k", "modify", "==", 2), True),
        (Compare(b"k", "modify", "==", 1), False),
        (Compare(b"k", "modify", ">", 1), True),
        (Compare(b"k", "modify", "<", 2), False),
        (Compare(b"k", "lease", "==", 0), True),
        (Compare(b"absent", "create", "==", 0), True),
        (Compare(b"absent", "modify", "<", 1), True),
        (Compare(b"absent", "lease", ">", 0), False),
    ],
)
def test_comparisons(run: Run, compare: Compare, *, holds: bool) -> None:
    """Each field and operator has the same meaning on all engines; a missing key counts as 0."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await put(store, Put(b"k", b"1"))
        await put(store, Put(b"k", b"2"))
        revision = (
            machine.base + compare.argument if compare.key == b"k" and compare.field != "lease" else compare.argument
        )
        shifted = Compare(compare.key, compare.field, compare.operator, revision)
        assert (await store.transact([shifted], [])).succeeded is holds
        assert not (await store.transact([shifted, Compare(b"k", "create", "==", 99_999)], [])).succeeded, (
            "all must hold"
        )

    run(scenario)


def test_a_key_keeps_its_create_revision_until_it_is_deleted(run: Run) -> None:
    """The create revision is an identity: it stays through changes, and is new after deletion."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await put(store, Put(b"k", b"1"))
        await put(store, Put(b"k", b"2"))
        base = machine.base
        assert await store.get(b"k") == KeyValue(b"k", b"2", base + 1, base + 2)
        await put(store, Delete(b"k"))
        assert await store.get(b"k") is None
        await put(store, Put(b"k", b"3"))
        assert await store.get(b"k") == KeyValue(b"k", b"3", base + 4, base + 4)

    run(scenario)


def test_operations_run_in_order_under_one_revision(run: Run) -> None:
    """A Get sees the operations before it in the same transaction, and all changes share a revision."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        result = await put(store, Get(b"a"), Put(b"a", b"1"), Get(b"a"), Put(b"b", b"2"), Delete(b"absent"))
        now = machine.base + 1
        assert result == TransactionResult(succeeded=True, revision=now, gets=(None, KeyValue(b"a", b"1", now, now)))
        (batch,) = await take(store.watch(b"", now), 1)
        assert batch == Batch(now, (KeyEvent(b"a", b"1", now, now), KeyEvent(b"b", b"2", now, now)))

    run(scenario)


def test_what_changes_nothing_has_no_revision(run: Run) -> None:
    """Reads, failed comparisons and deletions of nothing do not raise the revision."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await put(store, Put(b"k", b"1"))
        now = machine.base + 1
        assert (await put(store, Get(b"k"))).revision == now
        assert (await put(store, Delete(b"absent"))).revision == now
        assert (await store.transact([Compare(b"k", "create", "==", 0)], [Put(b"k", b"2")])).revision == now
        assert (await put(store, Put(b"k", b"1"))).revision == now + 1, "a put of the same value is a change"

    run(scenario)


def test_a_range_is_ordered_and_of_one_revision(run: Run) -> None:
    """Images are loaded from ranges: they have every key under the prefix, and no other."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await put(store, *(Put(key, b"") for key in (b"/b/2", b"/b/1", b"/a/9", b"/b", b"/c/0", b"/b0")))
        pairs, revision = await store.range(b"/b/")
        assert [pair.key for pair in pairs] == [b"/b/1", b"/b/2"]
        assert revision == machine.base + 1

    run(scenario)


def test_concurrent_increments_all_count(run: Run) -> None:
    """Twenty writers of one counter, each comparing: none is lost, though their writes share commits."""

    async def increment(store: MetadataStore) -> None:
        while True:
            pair = await store.get(b"n")
            value, revision = (0, 0) if pair is None else (int(pair.value), pair.modify_revision)
            if (
                await store.transact([Compare(b"n", "modify", "==", revision)], [Put(b"n", b"%d" % (value + 1))])
            ).succeeded:
                return

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await asyncio.gather(*(increment(store) for _ in range(20)))
        assert await store.get(b"n") == KeyValue(b"n", b"20", machine.base + 1, machine.base + 20)

    run(scenario)


def test_a_watch_delivers_the_past_and_then_the_present(run: Run) -> None:
    """It yields changes from the start revision (inclusive) in order, without gaps, repetition or other prefixes."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        for number in range(1, 4):
            await put(store, Put(b"/w/%d" % number, b""))
        base = machine.base
        batches = store.watch(b"/w/", base + 2)
        async with aclosing(batches):
            assert [(await anext(batches)).revision for _ in range(2)] == [base + 2, base + 3]
            coming = asyncio.ensure_future(anext(batches))
            await put(store, Put(b"/other", b""))
            await put(store, Put(b"/w/5", b"5"), Put(b"/other", b"5"))
            assert await coming == Batch(base + 5, (KeyEvent(b"/w/5", b"5", base + 5, base + 5),))

    run(scenario)


def test_a_watch_waits_for_a_revision_to_come(run: Run) -> None:
    """A watcher that is ahead of the store, as after a move to another server, must not receive older batches."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        batches = store.watch(b"", machine.base + 3)
        async with aclosing(batches):
            coming = asyncio.ensure_future(anext(batches))
            for number in range(4):
                await put(store, Put(b"k", b"%d" % number))
            assert (await coming).revision == machine.base + 3

    run(scenario)


def test_a_watch_far_behind_gets_an_error(run: Run) -> None:
    """There is never a silent gap: a discarded revision is an error, and the range still has the current state."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        await machine.forget()
        with pytest.raises(CompactedError):
            await take(store.watch(b"", machine.base + 1), 1)
        _, revision = await store.range(b"")
        assert (await take(store.watch(b"", revision), 1))[0].revision == revision

    run(scenario)


def test_a_lease_lasts_while_it_is_kept_alive_and_its_keys_end_with_it(run: Run) -> None:
    """Liveness relies on this.

    With renewals it lasts longer than its time, without them it ends, with all its keys in one revision.
    """

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        lease = await store.lease_grant(machine.lease_ms)
        result = await put(store, Put(b"/l/a", b"1", lease), Put(b"/l/b", b"2", lease), Put(b"/other", b"3"))
        for _ in range(machine.lease_ms * 3 // 2 // RENEW_MS):
            await asyncio.sleep(RENEW_MS / 1000)
            await store.lease_keep_alive(lease)
        base = machine.base
        assert await store.get(b"/l/a") == KeyValue(b"/l/a", b"1", base + 1, base + 1, lease)
        (batch,) = await take(store.watch(b"/l/", result.revision + 1), 1)
        assert batch == Batch(base + 2, (KeyEvent(b"/l/a", None, 0, base + 2), KeyEvent(b"/l/b", None, 0, base + 2)))
        assert [pair.key for pair in (await store.range(b"/"))[0]] == [b"/other"]
        with pytest.raises(LeaseGoneError):
            await store.lease_keep_alive(lease)
        with pytest.raises(LeaseGoneError):
            await put(store, Put(b"/other", b"4"), Put(b"/l/a", b"1", lease))
        assert await store.get(b"/other") == KeyValue(b"/other", b"3", base + 1, base + 1), "refused as a whole"

    run(scenario)


def test_a_revoked_lease_is_gone_at_once(run: Run) -> None:
    """A broker that stops cleanly is not waited for. A put that is under way when the lease ends is deleted with it."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        lease = await store.lease_grant(60_000)
        other = await store.lease_grant(60_000)
        assert lease != other
        on_its_way = asyncio.ensure_future(put(store, Put(b"k", b"1", lease)))
        await asyncio.sleep(0)
        await store.lease_revoke(lease)
        with suppress(LeaseGoneError):  # In etcd it may also be the second.
            await on_its_way
        assert await store.get(b"k") is None
        await store.lease_revoke(lease)
        await put(store, Put(b"k", b"2", other))
        with pytest.raises(LeaseGoneError):
            await store.lease_keep_alive(lease)

    run(scenario)


def test_a_key_is_detached_from_its_lease_by_a_put_without(run: Run) -> None:
    """The lease of the last put counts."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        lease, other = await store.lease_grant(60_000), await store.lease_grant(60_000)
        await put(store, Put(b"kept", b"1", lease), Put(b"moved", b"1", lease), Put(b"gone", b"1", lease))
        await put(store, Put(b"kept", b"2"), Put(b"moved", b"2", other))
        await store.lease_revoke(lease)
        assert [pair.key for pair in (await store.range(b""))[0]] == [b"kept", b"moved"]
        await store.lease_revoke(other)
        assert [pair.key for pair in (await store.range(b""))[0]] == [b"kept"]

    run(scenario)


def test_the_next_process_has_all_but_the_leased_keys(run: Run) -> None:
    """After a restart the state and its revisions are the same.

    Leases of the earlier process end in one revision, permanently.

    A store with a server keeps running instead, with its leases.
    """

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        lease = await store.lease_grant(60_000)
        await put(store, Put(b"a", b"1", lease), Put(b"b", b"2", lease), Put(b"c", b"3"))
        await put(store, Put(b"c", b"4"))
        await machine.close()
        store = await machine.open()
        if not machine.leases_end_with_it:
            await store.lease_keep_alive(lease)
            assert [pair.key for pair in (await store.range(b""))[0]] == [b"a", b"b", b"c"]
            return
        assert await store.range(b"") == ([KeyValue(b"c", b"4", 1, 2)], 3)
        assert await store.lease_grant(60_000) > lease, "a lease id is never assigned twice"
        with pytest.raises(LeaseGoneError):
            await store.lease_keep_alive(lease)
        assert (await put(store, Put(b"a", b"5"))).revision == 4

    run(scenario)


def test_a_closed_store_refuses_everything(run: Run) -> None:
    """This includes a waiting watch: a session must not hang after its store is closed."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        watching = asyncio.ensure_future(take(store.watch(b"", machine.base + 1), 1))
        await asyncio.sleep(0.01)
        await machine.close()
        with pytest.raises(UnavailableError):
            await watching
        with pytest.raises(UnavailableError):
            await store.get(b"k")
        with pytest.raises(UnavailableError):
            await put(store, Put(b"k", b""))

    run(scenario)


def test_a_transaction_that_etcd_would_refuse_is_our_bug(run: Run) -> None:
    """Too many operations, and a key written twice, are detected on every engine."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        with pytest.raises(AssertionError, match="over the limit"):
            await put(store, *(Put(b"%d" % number, b"") for number in range(MAX_TRANSACTION_OPERATIONS + 1)))
        with pytest.raises(AssertionError, match="twice"):
            await put(store, Put(b"k", b"1"), Delete(b"k"))
        assert await store.range(b"") == ([], machine.base)

    run(scenario)


def test_a_transaction_at_the_limits_is_accepted(run: Run) -> None:
    """With the maximum of comparisons, operations and bytes: no engine refuses what the check accepts."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        count = MAX_TRANSACTION_OPERATIONS
        names = [b"%03d" % number for number in range(count)]
        compares = [Compare(name, "modify", "==", 0) for name in names]
        overhead = OPERATION_BYTES + 3 * count * (OPERATION_BYTES + 3)
        value, rest = divmod(MAX_TRANSACTION_BYTES - overhead, count)
        first, *others = names
        puts = [Put(first, bytes(value + rest)), *(Put(name, bytes(value)) for name in others)]
        reads = [Get(name) for name in names]
        with pytest.raises(AssertionError, match="over the limit"):
            await store.transact(compares, [Put(first, bytes(value + rest + 1)), *puts[1:]], reads)
        assert (await store.transact(compares, puts, reads)).succeeded
        again = await store.transact(compares, puts, reads)
        assert not again.succeeded
        assert [len(pair.value) for pair in again.gets if pair is not None] == [value + rest, *[value] * (count - 1)]
        pairs, _ = await store.range(b"")
        assert [pair.key for pair in pairs] == names

    run(scenario)


def test_a_long_range_and_a_wide_revision_arrive_whole(run: Run) -> None:
    """The engine may split them.

    More keys than one page, and revisions that are too long for one message of a watch.
    """

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        value = bytes(10_000)
        wanted = []
        for part in range(5):
            names = [b"/p/%d/%03d" % (part, number) for number in range(100)]
            await put(store, *(Put(name, value) for name in names))
            wanted += names
        pairs, revision = await store.range(b"/p/")
        assert [pair.key for pair in pairs] == wanted
        batches = await take(store.watch(b"/p/", machine.base + 1), 5)
        assert [batch.revision for batch in batches] == [*range(machine.base + 1, revision + 1)]
        assert [event.key for batch in batches for event in batch.events] == wanted

    run(scenario)


def test_the_stores_revision(run: Run) -> None:
    """It is the revision of the last change of any kind: reads, conflicts and leases do not raise it."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        assert await store.revision() == machine.base
        result = await put(store, Put(b"k", b"1"))
        assert await store.revision() == result.revision == machine.base + 1
        lease = await store.lease_grant(machine.lease_ms * 20)
        await store.lease_keep_alive(lease)
        assert not (await store.transact([Compare(b"k", "create", "==", 0)], [Put(b"k", b"2")])).succeeded
        await store.range(b"")
        assert await store.revision() == machine.base + 1
        await put(store, Put(b"leased", b"", lease))
        await store.lease_revoke(lease)
        assert await store.revision() == machine.base + 3
        await put(store, Delete(b"k"))
        assert await store.revision() == (await store.range(b"never/"))[1] == machine.base + 4

    run(scenario)


def test_expiry_and_registration_race_in_order(run: Run) -> None:
    """A watcher of a lease's end sees its key deleted, never both registrations at once."""

    async def scenario(machine: Machine) -> None:
        store = await machine.open()
        lease = await store.lease_grant(machine.lease_ms // 4)
        await put(store, Put(b"k", b"old", lease))
        absent = Compare(b"k", "create", "==", 0)
        await until(lambda: _succeeds(store.transact([absent], [Put(b"k", b"new")])))
        old, gone, new = await take(store.watch(b"k", machine.base + 1), 3)
        assert [old.events[0].value, gone.events[0].value, new.events[0].value] == [b"old", None, b"new"]

    run(scenario)


async def _succeeds(result: Awaitable[TransactionResult]) -> bool:
    return (await result).succeeded

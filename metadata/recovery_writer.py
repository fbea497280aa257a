"""Writes a recovery into the store, in steps.

Until the last one, or after an interruption, no broker acts on the store.

The first step suspends the store; the last one writes its new history and lifts the suspension. Every step between
compares that the suspension is its own, so one of two concurrent recoveries fails. An interrupted recovery is repeated
as a whole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import RecoveryError
from lowtide.metadata.changes import STEP_PARTITIONS
from lowtide.metadata.metadata_copy import rows_of
from lowtide.metadata.prefixes import around, prefix_inside
from lowtide.metadata.records import SuspensionRecord, encode
from lowtide.metadata.store import MAX_TRANSACTION_BYTES, NO_LEASE, OPERATION_BYTES, Compare, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lowtide.metadata.metadata_copy import Row
    from lowtide.metadata.recovery import RecoveryPlan
    from lowtide.metadata.store import MetadataStore, Operation, Revision

ALIVE_LIMIT_S: Final = 20.0
"""How long registrations of stopped brokers may remain: a restored etcd restarts every lease."""

STEP_BYTES: Final = MAX_TRANSACTION_BYTES // 2

_LOOK_S: Final = 0.5
_NO_BROKER: Final = -1


class Beginning(NamedTuple):
    """The reason of the first suspension, and its conditions: comparisons of keys without the prefix."""

    reason: str
    compares: tuple[Compare, ...] = ()


RECOVERY: Final = Beginning("a recovery is under way, or was cut off")
"""A recovery may begin on any store, even a suspended one."""


async def read_rows(store: MetadataStore, prefix: bytes) -> tuple[dict[bytes, Row], Revision]:
    """Returns everything in the store that has no lease, without the prefix. Errors: UnavailableError."""
    pairs, revision = await store.range(prefix)
    return {row[0]: row for row in rows_of(pairs, prefix)}, revision


async def until_nobody_is_registered(store: MetadataStore, prefix: bytes, limit_s: float = ALIVE_LIMIT_S) -> None:
    """Waits until the leases of all brokers have ended. Errors: RecoveryError if they don't; UnavailableError."""
    try:
        async with asyncio.timeout(limit_s):
            while True:
                pairs, _ = await store.range(prefix + keys.BROKERS)
                alive = [
                    pair.key.removeprefix(prefix + keys.BROKERS).decode() for pair in pairs if pair.lease != NO_LEASE
                ]
                if not alive:
                    return
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise RecoveryError(f"broker {', '.join(alive)} is running: stop all brokers first") from None


async def bring_forward(
    store: MetadataStore, prefix: bytes, plan: RecoveryPlan, beginning: Beginning = RECOVERY
) -> None:
    """Writes the plan. Errors: RecoveryError if another recovery runs; the store's, after which it can be repeated."""
    suspension = Put(prefix + keys.SUSPENSION, encode(SuspensionRecord(beginning.reason, _NO_BROKER)))
    compares = [Compare(prefix + each.key, each.field, each.operator, each.argument) for each in beginning.compares]
    begun = await store.transact(compares, [suspension])
    if not begun.succeeded:
        raise RecoveryError("something else began to use the metadata store meanwhile: nothing was done")
    mine = Compare(suspension.key, "modify", "==", begun.revision)
    rows, _ = await read_rows(store, prefix)
    inner = prefix_inside(prefix, ((row[0], row[1]) for row in rows.values()))
    if inner is not None:
        raise RecoveryError(around(prefix, inner))  # Its keys would be deleted.
    kept = {keys.SUSPENSION, keys.HISTORY}
    changes: list[Put | Delete] = [Delete(prefix + key) for key in rows if key not in plan.values and key not in kept]
    changes += [
        Put(prefix + key, value) for key, value in plan.values.items() if key not in rows or rows[key][1] != value
    ]
    for step in _steps(changes):
        await _write(store, mine, step)
    await _write(store, mine, [Put(prefix + keys.HISTORY, encode(plan.history)), Delete(suspension.key)])


async def _write(store: MetadataStore, mine: Compare, operations: list[Operation]) -> None:
    result = await store.transact([mine], operations)
    if not result.succeeded:
        raise RecoveryError(
            "another recovery is under way, or a broker runs: nothing was finished, make this one again"
        )


def _steps(changes: Iterable[Put | Delete]) -> Iterator[list[Operation]]:
    step: list[Operation] = []
    size_bytes = 0
    for change in changes:
        bytes_of = 2 * OPERATION_BYTES + len(change.key) + (len(change.value) if isinstance(change, Put) else 0)
        if step and (len(step) == STEP_PARTITIONS or size_bytes + bytes_of > STEP_BYTES):
            yield step
            step, size_bytes = [], 0
        step.append(change)
        size_bytes += bytes_of
    if step:
        yield step

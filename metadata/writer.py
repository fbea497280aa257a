"""Fenced writes: every transaction compares the broker's registration, and a lost answer is looked up.

A transaction without an answer may have been applied, may not have been, or may still be. It is never repeated in the
hope that it was not: its effect is looked up first, and a repetition conflicts if the first attempt arrives late.

Guards: a broker that was declared dead, or a deposed controller, writes nothing. Source: Jepsen's report on jetcd,
whose client executed transactions twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError
from lowtide.metadata.store import ABSENT, AmbiguousError, Compare, Delete, Get, Put, UnavailableError
from lowtide.runtime.committer import Durations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.changes import Step
    from lowtide.metadata.store import MetadataStore, Revision, TransactionResult
    from lowtide.runtime.clock import Clock

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids allocated to a broker at once. Source: Kafka's `ProducerIdsBlock`."""

PRODUCER_ID_ATTEMPTS: Final = 20
"""Attempts to allocate one block. Each failure means that another broker got one, or that an answer was lost."""

FIRST_RETRY_MS: Final = 50
LAST_RETRY_MS: Final = 1000
"""The first and the longest wait between attempts to reach the store; waits double."""


class Backoff:
    """Waits that double from `FIRST_RETRY_MS` to `LAST_RETRY_MS`."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = FIRST_RETRY_MS

    def next_ms(self) -> int:
        """Returns the next wait."""
        wait_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, LAST_RETRY_MS)
        return wait_ms

    async def wait(self) -> None:
        await asyncio.sleep(self.next_ms() / 1000)


async def is_set_within(event: asyncio.Event, wait_ms: int) -> bool:
    """Returns whether an event is set within the time."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


class FencedWriter:
    """Writes on behalf of one broker. `fences` are comparisons added to each transaction."""

    def __init__(self, store: MetadataStore, clock: Clock, prefix: bytes, ambiguous_timeout_ms: int) -> None:
        """Writes under `prefix`, and looks up the effect of an unanswered transaction for the given time."""
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._ambiguous_timeout_ms = ambiguous_timeout_ms
        self.times = Durations()
        """Of transactions that the store answered."""

    async def write(self, steps: Sequence[Step], fences: Sequence[Compare], seen: Revision) -> Revision:
        """Writes the steps in order.

        `seen` is the revision on which they were decided. Returns the revision of the last.

        Errors: FencedError, NotControllerError, ConflictError, UnavailableError: this step was not written, earlier
        ones were. AmbiguousError: the outcome could not be found out in time.
        """
        revision = seen
        for step in steps:
            revision = await self._write_step(step, fences, revision)
        return revision

    async def allocate_producer_ids(self, fences: Sequence[Compare]) -> range:
        """Allocates a block of producer ids. Errors: FencedError, UnavailableError (also after many conflicts)."""
        key = self._prefix + keys.NEXT_PRODUCER_ID
        for _ in range(PRODUCER_ID_ATTEMPTS):
            current = await self._store.get(key)
            if current is not None and not current.value.isdigit():
                raise UnavailableError(f"{current.key.decode(errors='replace')} in the metadata store is not a number")
            first = 0 if current is None else int(current.value)
            unchanged = Compare(key, "modify", "==", ABSENT if current is None else current.modify_revision)
            with suppress(AmbiguousError):  # Then the block may be lost: ids are not scarce.
                result = await self._store.transact(
                    [unchanged, *fences], [Put(key, b"%d" % (first + PRODUCER_ID_BLOCK))], _fence_reads(fences)
                )
                if result.succeeded:
                    return range(first, first + PRODUCER_ID_BLOCK)
                self._raise_if_fenced(fences, result)
        message = f"no block of producer ids in {PRODUCER_ID_ATTEMPTS} attempts"
        raise UnavailableError(message)

    async def _write_step(self, step: Step, fences: Sequence[Compare], seen: Revision) -> Revision:
        """Runs one transaction. After a lost answer it is repeated if it had no effect, which its comparisons allow."""
        compares = [Compare(self._prefix + c.key, c.field, c.operator, c.argument) for c in step.compares]
        operations = [
            Put(self._prefix + o.key, o.value, o.lease) if type(o) is Put else Delete(self._prefix + o.key)
            for o in step.operations
        ]
        give_up_ms = self._clock.monotonic_ms() + self._ambiguous_timeout_ms
        backoff = Backoff()
        ambiguous = False
        while True:
            try:
                if ambiguous and (revision := await self._effect_of(operations[0], seen)) is not None:
                    return revision
                began_ns = self._clock.monotonic_ns()
                result = await self._store.transact([*compares, *fences], operations, _fence_reads(fences))
                self.times.add(self._clock.monotonic_ns() - began_ns)
            except (AmbiguousError, UnavailableError) as error:
                ambiguous = ambiguous or isinstance(error, AmbiguousError)
                if not ambiguous:
                    raise
                if self._clock.monotonic_ms() >= give_up_ms:
                    message = f"what became of a change of {operations[0].key!r} is unknown: {error}"
                    raise AmbiguousError(message) from error
                await backoff.wait()
                continue
            if result.succeeded:
                return result.revision
            if ambiguous and (revision := await self._effect_of(operations[0], seen)) is not None:
                return revision
            self._raise_if_fenced(fences, result)
            message = f"{operations[0].key!r}, or a key that its change relies on, was changed by another writer"
            raise ConflictError(message)

    async def _effect_of(self, operation: Put | Delete, seen: Revision) -> Revision | None:
        """Returns the revision at which the store shows the effect of `operation`, or None; for a deletion `seen`."""
        pair = await self._store.get(operation.key)
        if type(operation) is Put:
            applied = pair is not None and pair.value == operation.value and pair.modify_revision > seen
            return pair.modify_revision if pair is not None and applied else None
        return seen if pair is None else None

    def _raise_if_fenced(self, fences: Sequence[Compare], result: TransactionResult) -> None:
        for fence, pair in zip(fences, result.gets, strict=True):
            if (ABSENT if pair is None else pair.create_revision) == fence.argument:
                continue
            if fence.key.endswith(keys.SUSPENSION):
                message = "the metadata store is suspended"
                raise FencedError(message)
            if fence.key.endswith(keys.CONTROLLER):
                message = "this broker is no longer the controller"
                raise NotControllerError(message)
            message = f"the registration {fence.key!r} with epoch {fence.argument} is no longer in force"
            raise FencedError(message)


def _fence_reads(fences: Sequence[Compare]) -> list[Get]:
    """Returns reads that show whether a fence made a transaction fail."""
    return [Get(fence.key) for fence in fences]

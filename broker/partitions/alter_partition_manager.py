"""Writes changes of ISRs to the metadata store, beside everything else that the broker does.

A proposal counts from the moment at which it is handed over. It ends when the image shows what became of it, or when
the store has certainly not taken it. One that was sent and never answered is sent again, unchanged: its comparisons let
it be made once at most, so in the end the store either has it or refuses it.

Guards: nothing is ever decided again on a partition's record that is known to be old; the next decision waits for a
newer image. Source: KIP-497; Kafka's "Cached zkVersion not equal, skip updating ISR" (KAFKA-2729) is what comes of the
contrary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.store import AmbiguousError, LeaseGoneError, UnavailableError
from lowtide.metadata.writer import Backoff
from lowtide.replication.alter_partition import BATCH_PARTITIONS, plan_alter_partition, take_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.promises import Spawn
    from lowtide.metadata.session import MetadataSession
    from lowtide.replication.leadership import IsrProposal, Leadership
    from lowtide.replication.partition import Partition

_NAMES_TOLD: Final = 5

_NOT_MADE: Final = (ConflictError, FencedError, NotControllerError, UnavailableError, LeaseGoneError, SessionError)


class _Change:
    """One proposal on its way."""

    __slots__ = ("leadership", "on_withdrawn", "partition", "proposal")

    def __init__(
        self,
        partition: Partition,
        leadership: Leadership,
        proposal: IsrProposal,
        on_withdrawn: Callable[[Partition], None],
    ) -> None:
        self.partition = partition
        self.leadership = leadership
        self.proposal = proposal
        self.on_withdrawn = on_withdrawn

    @property
    def is_current(self) -> bool:
        """Whether it is still to be decided: neither has the leadership ended, nor has the image shown another record."""
        return self.partition.leadership is self.leadership and self.leadership.proposal is self.proposal


class IsrChanges:
    """Proposes changes of ISRs. One for each broker."""

    def __init__(self, session: MetadataSession, spawn: Spawn, log: Any) -> None:
        self.shrinks = self.expands = self.failures = 0
        """Changes that were written and removed or added members; and changes that the store refused."""
        self._session = session
        self._spawn = spawn
        self._log = log
        self._waiting: deque[_Change] = deque()
        self._running = False

    def submit(
        self,
        partition: Partition,
        leadership: Leadership,
        proposal: IsrProposal,
        on_withdrawn: Callable[[Partition], None],
    ) -> None:
        """Write what was just proposed.

        `on_withdrawn` is called with the partition if the proposal doesn't count any more: its high watermark may be free to rise.
        """
        self._enqueue(_Change(partition, leadership, proposal, on_withdrawn))
        if not self._running:
            self._running = True
            self._spawn(self._run(), name=f"isr-changes-{self._session.broker_id}")

    def _enqueue(self, change: _Change) -> None:
        self._waiting.append(change)

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            # What is proposed in one pass of the loop goes together.
            await asyncio.sleep(0)
            while batch := self._take():
                if await self._write(batch):
                    backoff = Backoff()
                else:
                    await backoff.wait()
        finally:
            self._running = False

    def _take(self) -> list[_Change]:
        """The next changes that go into one transaction.

        What waits behind them isn't looked at: it may be ten thousand others.
        """
        current: list[_Change] = []
        while self._waiting and len(current) < BATCH_PARTITIONS:
            change = self._waiting.popleft()
            if change.is_current:
                current.append(change)
        count = take_batch([(change.leadership, change.proposal) for change in current])
        self._waiting.extendleft(reversed(current[count:]))
        return current[:count]

    async def _write(self, batch: list[_Change]) -> bool:
        """Write them together; after a conflict each alone. Returns whether the store answered."""
        step = plan_alter_partition([(change.leadership, change.proposal) for change in batch])
        try:
            await self._session.commit(ChangePlan((step,), needs_controller=False))
        except AmbiguousError as error:
            self._log.warning("it is unknown whether ISRs have changed", partitions=len(batch), error=str(error))
            for change in batch:
                self._enqueue(change)
            return False
        except ConflictError:
            if len(batch) == 1:
                self._withdraw(batch[0], conflicted=True)
                return True
            answered = True
            for change in batch:
                if change.is_current:
                    answered = await self._write([change]) and answered
            return answered
        except _NOT_MADE as error:
            if self._session.broker_epoch:  # A missing registration is logged elsewhere, and a stop is no fault.
                self._log.warning("ISRs could not be changed", partitions=len(batch), error=str(error))
            for change in batch:
                self._withdraw(change, conflicted=False)
            return False
        for change in batch:
            proposal = change.proposal
            self.shrinks += not set(proposal.base.isr) <= set(proposal.isr)
            self.expands += not set(proposal.isr) <= set(proposal.base.isr)
        self._tell_changed(batch)
        return True

    def _tell_changed(self, batch: list[_Change]) -> None:
        """One line for all that changed in the same way, with the first few names."""
        alike: dict[tuple[Any, Any], list[str]] = {}
        for change in batch:
            proposal = change.proposal
            alike.setdefault((proposal.base.isr, proposal.isr), []).append(str(change.partition.topic_partition))
        for (before, now), names in alike.items():
            self._log.info(
                "ISR changed", before=list(before), now=list(now), partitions=len(names), first=names[:_NAMES_TOLD]
            )

    def _withdraw(self, change: _Change, *, conflicted: bool) -> None:
        self.failures += 1
        if (
            change.leadership.on_refused(change.proposal, conflicted=conflicted)
            and change.partition.leadership is change.leadership
        ):
            change.on_withdrawn(change.partition)

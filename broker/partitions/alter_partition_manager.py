"""Writes ISR changes to the metadata store.

A proposal is in force from its submission until the image shows its outcome, or the store certainly has not accepted
it. A proposal without an answer is sent again unchanged: its comparisons allow it at most once, so in the end the store
either has it or refuses it.

Guards: no decision is based on a partition record that is known to be old; the next one waits for a newer image.
Source: KIP-497; without this, an ISR can stay wrong (KAFKA-2729).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.store import AmbiguousError, LeaseGoneError, UnavailableError
from lowtide.metadata.writer import StoreBackoff
from lowtide.replication import in_sync_replicas
from lowtide.replication.alter_partition import BATCH_PARTITIONS, plan_alter_partition, take_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.promises import Spawn
    from lowtide.metadata.session import MetadataSession
    from lowtide.replication.eligible_leaders import IsrProposal
    from lowtide.replication.leadership import Leadership
    from lowtide.replication.partition import Partition

_NAMES_LOGGED: Final = 5

_NOT_MADE: Final = (ConflictError, FencedError, NotControllerError, UnavailableError, LeaseGoneError, SessionError)


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A submitted proposal."""

    partition: Partition
    leadership: Leadership
    proposal: IsrProposal
    on_withdrawn: Callable[[Partition], None]

    @property
    def is_current(self) -> bool:
        """Whether the leadership continues and the image has not shown another record."""
        return self.partition.leadership is self.leadership and self.leadership.proposal is self.proposal


class IsrChanges:
    """Writes the ISR changes of one broker."""

    def __init__(self, session: MetadataSession, spawn: Spawn, log: Any) -> None:
        self.shrinks = self.expands = self.failures = 0
        """Written changes that removed or added members, and changes that the store refused."""
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
        """Writes a new proposal.

        Calls `on_withdrawn` with the partition if the proposal fails: its high watermark may be free to rise.
        """
        self._waiting.append(_Change(partition, leadership, proposal, on_withdrawn))
        if not self._running:
            self._running = True
            self._spawn(self._run(), name=f"isr-changes-{self._session.broker_id}")

    async def _run(self) -> None:
        backoff = StoreBackoff()
        try:
            # Proposals of one pass of the loop are written together.
            await asyncio.sleep(0)
            while batch := self._take():
                if await self._write(batch):
                    backoff = StoreBackoff()
                else:
                    await backoff.wait()
        finally:
            self._running = False

    def _take(self) -> list[_Change]:
        """Returns the next changes that fit in one transaction. There may be ten thousand others behind them."""
        current: list[_Change] = []
        while self._waiting and len(current) < BATCH_PARTITIONS:
            change = self._waiting.popleft()
            if change.is_current:
                current.append(change)
        count = take_batch([(change.leadership, change.proposal) for change in current])
        self._waiting.extendleft(reversed(current[count:]))
        return current[:count]

    async def _write(self, batch: list[_Change]) -> bool:
        """Writes changes together, or one by one after a conflict. Returns whether the store answered."""
        step = plan_alter_partition([(change.leadership, change.proposal) for change in batch])
        try:
            await self._session.commit(ChangePlan((step,), needs_controller=False))
        except AmbiguousError as error:
            self._log.warning("it is unknown whether ISRs have changed", partitions=len(batch), error=str(error))
            self._waiting.extend(batch)
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
            if self._session.broker_epoch:  # A missing registration is logged elsewhere.
                self._log.warning("ISRs could not be changed", partitions=len(batch), error=str(error))
            for change in batch:
                self._withdraw(change, conflicted=False)
            return False
        for change in batch:
            proposal = change.proposal
            self.shrinks += not set(proposal.base.isr) <= set(proposal.isr)
            self.expands += not set(proposal.isr) <= set(proposal.base.isr)
        self._log_changed(batch)
        return True

    def _log_changed(self, batch: list[_Change]) -> None:
        """Logs one line for all partitions with the same change."""
        alike: dict[tuple[Any, Any], list[str]] = {}
        for change in batch:
            proposal = change.proposal
            alike.setdefault((proposal.base.isr, proposal.isr), []).append(str(change.partition.topic_partition))
        for (before, now), names in alike.items():
            self._log.info(
                "ISR changed", before=list(before), now=list(now), partitions=len(names), first=names[:_NAMES_LOGGED]
            )

    def _withdraw(self, change: _Change, *, conflicted: bool) -> None:
        self.failures += 1
        if (
            in_sync_replicas.on_refused(change.leadership, change.proposal, conflicted=conflicted)
            and change.partition.leadership is change.leadership
        ):
            change.on_withdrawn(change.partition)

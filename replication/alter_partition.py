"""Plans a leader's ISR changes: one transaction for several partitions, with everything they rely on compared.

A change compares each partition's record, so that no change is lost (KIP-497), and for every other member of a new ISR
its registration, so that no earlier registration of a broker is in sync (KIP-903), and that it isn't about to stop
(KIP-841). The session's fence compares the leader's own registration. The controller takes no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, Step
from lowtide.metadata.records import encode
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.replication.eligible_leaders import IsrProposal
    from lowtide.replication.leadership import Leadership

BATCH_PARTITIONS: Final = 40
"""Partitions per transaction: larger ones conflict more often and gain little."""


def plan_alter_partition(changes: Sequence[tuple[Leadership, IsrProposal]]) -> Step:
    """Returns the transaction that makes all of these changes, or none."""
    operations: list[Put] = []
    compares: dict[bytes, Compare] = {}
    for leadership, proposal in changes:
        base = proposal.base
        key = keys.partition(leadership.topic_id, leadership.number)
        record = base.changed(
            isr=proposal.isr, isr_epochs=proposal.isr_epochs, elr=proposal.elr, elr_epochs=proposal.elr_epochs
        )
        operations.append(Put(key, encode(record)))
        compares[key] = Compare(key, "modify", "==", base.modify_revision)
        for compare in member_compares(leadership, proposal):
            compares[compare.key] = compare
    return Step(tuple(operations), tuple(compares.values()))


def member_compares(leadership: Leadership, proposal: IsrProposal) -> list[Compare]:
    """Returns the comparisons for the other members of the ISR."""
    found = []
    for member, epoch in zip(proposal.isr, proposal.isr_epochs, strict=True):
        if member != leadership.broker_id:
            found.append(Compare(keys.broker(member), "create", "==", epoch))
            found.append(Compare(keys.shutdown(member), "create", "==", ABSENT))
    return found


def take_batch(changes: Sequence[tuple[Leadership, IsrProposal]]) -> int:
    """Returns how many of the first changes fit into one transaction.

    Changes that rely on different registrations of a broker do not fit together: one of them is outdated and would fail
    the other.
    """
    compares: dict[bytes, Compare] = {}
    for count, (leadership, proposal) in enumerate(changes[:BATCH_PARTITIONS]):
        needed = member_compares(leadership, proposal)
        if any(compares.get(compare.key, compare) != compare for compare in needed):
            return count
        compares.update((compare.key, compare) for compare in needed)
        if len(compares) + count + 1 > MAX_TRANSACTION_OPERATIONS - FENCES:
            return max(count, 1)
    return min(len(changes), BATCH_PARTITIONS)

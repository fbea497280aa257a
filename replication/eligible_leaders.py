"""Decides which replicas may lead a partition that has too few in-sync replicas (KIP-966). A proposed ISR names them.

While fewer than `min.insync.replicas` replicas are in sync, nothing is committed: the high watermark stands still and
no delete is acknowledged. A replica that leaves the ISR in that state still has everything that clients were promised.
It stays eligible as a leader until it loses data. So a single machine that loses unsynced writes costs no record.

Guards: an eligible replica has every committed record and every acknowledged delete. No replica is eligible while the
ISR is large enough, because something may then be committed without it. A replica that has lost its directory (rule
DR8) or its power since it was in sync is not eligible.

Pure. Source: KIP-966; Kafka's `PartitionChangeBuilder.maybePopulateTargetElr`. Differences: a process crash without a
machine crash loses nothing, and the last member stays in the ISR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lowtide.metadata.image import Members, MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId


class IsrProposal(msgspec.Struct, eq=False):
    """A proposed ISR in place of that of `base`. Compared by identity: the same change may be proposed twice.

    `decided_at` is the revision of the image on which it was decided. `elr` are the eligible leaders beside it
    (KIP-966).
    """

    base: PartitionImage
    decided_at: Revision
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]
    elr: tuple[BrokerId, ...] = ()
    elr_epochs: tuple[BrokerEpoch, ...] = ()


def eligible_leaders(  # noqa: PLR0913  a partition, and what it becomes
    image: MetadataImage,
    topic_id: TopicId,
    number: int,
    partition: PartitionImage,
    isr: Sequence[BrokerId],
    replicas: Collection[BrokerId],
    min_insync_replicas: int,
) -> Members:
    """Returns the eligible leaders of a partition whose ISR becomes `isr`; empty when that ISR is large enough.

    `replicas` are the partition's replicas after the change.
    """
    if not image.has_eligible_leaders or len(isr) >= min(min_insync_replicas, len(replicas)):
        return {}
    return {
        member: epoch
        for member, epoch in sorted(partition.members.items())
        if member in replicas and member not in isr and image.has_all(member, topic_id, number, epoch)
    }

"""Who may lead a partition that has too few members in sync: those that were in sync, with all that was committed (KIP-966).

While fewer than `min.insync.replicas` members are in sync, nothing is committed: the high watermark stands still, and a delete isn't
acknowledged. So who leaves the in-sync set then still has everything that clients were promised, and stays eligible as a leader, until it
loses something. That a single machine loses what it had not synced then costs no record.

Guards: an eligible replica has every committed record and every acknowledged delete; there is none while enough members are in sync, for
then something may be committed without it; who has lost its directory (rule DR8), or its power, since it was in sync isn't eligible.

Pure. Source: KIP-966; Kafka's `PartitionChangeBuilder.maybePopulateTargetElr`. Unlike there, a process that ends without the machine loses
nothing, and the last member stays in the in-sync set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lowtide.metadata.image import Members, MetadataImage, PartitionImage
    from lowtide.protocol.types import BrokerId, TopicId


def eligible_leaders(  # noqa: PLR0913  a partition, and what it becomes
    image: MetadataImage,
    topic_id: TopicId,
    number: int,
    partition: PartitionImage,
    isr: Sequence[BrokerId],
    replicas: Collection[BrokerId],
    min_insync_replicas: int,
) -> Members:
    """The eligible leaders of a partition whose in-sync set becomes `isr`; none where it is large enough.

    Errors: none. `replicas` are those that it has from then on.
    """
    if not image.has_eligible_leaders or len(isr) >= min(min_insync_replicas, len(replicas)):
        return {}
    return {
        member: epoch
        for member, epoch in sorted(partition.members.items())
        if member in replicas and member not in isr and image.has_all(member, topic_id, number, epoch)
    }

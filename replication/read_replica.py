"""Which replica a consumer is to read from: one in its own rack, if there is one that has what it wants (KIP-392).

Chosen among in-sync replicas that have the offset and have reported a log start that has reached ours: others would
refuse by rule DR7, and the consumer would go to and fro. The leader of the same rack is preferred, then who has most.

Source: Kafka's `RackAwareReplicaSelector` and `ReplicaManager.findPreferredReadReplica`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId, Offset
    from lowtide.replication.leadership import Leadership

NO_REPLICA: Final[BrokerId] = -1


def preferred_read_replica(leadership: Leadership, image: MetadataImage, rack: str, fetch_offset: Offset) -> BrokerId:
    """The replica in that rack to read from, -1 for the leader."""
    own = image.brokers.get(leadership.broker_id)
    if own is not None and own.rack == rack:
        return NO_REPLICA
    log_start_offset = leadership.log.log_start_offset
    best, best_end = NO_REPLICA, -1
    for broker_id, follower in leadership.followers.items():
        broker = image.brokers.get(broker_id)
        if (
            broker is None
            or broker.rack != rack
            or broker_id not in leadership.state.isr
            or broker.epoch != follower.broker_epoch
        ):
            continue
        has_it = follower.log_end_offset >= fetch_offset and follower.log_start_offset >= log_start_offset
        if has_it and follower.log_end_offset > best_end:
            best, best_end = broker_id, follower.log_end_offset
    return best

"""Plans leader elections that a client requests (KIP-183, KIP-460).

Pure: an image and a request go in, a plan and an outcome for each partition come out. Source: Kafka's
`ReplicationControlManager.electLeaders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata.records import NO_LEADER, PartitionRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.controller import ControllerSettings, min_insync_replicas
from lowtide.replication.elections import Election, elect
from lowtide.replication.reassignments import PartitionsPlan, find_partition
from lowtide.replication.refusal import Refusal
from lowtide.replication.steps import PartitionChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage


def plan_elections(
    image: MetadataImage, wanted: Sequence[tuple[str, int]], election: Election, settings: ControllerSettings
) -> PartitionsPlan:
    """Plans elections for partitions, by topic and number.

    A requested unclean election needs no configuration. Errors: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
    PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    changes = PartitionChanges(image)
    decided: dict[tuple[str, int], Refusal | None] = {}
    for name, number in dict.fromkeys(wanted):
        found = find_partition(image, name, number)
        outcome = found if isinstance(found, Refusal) else _decide(image, *found, number, election, settings)
        if isinstance(outcome, PartitionRecord):
            topic = image.topics[name]
            changes.add(topic.topic_id, number, topic.partitions[number], outcome)
        decided[name, number] = outcome if isinstance(outcome, Refusal) else None
    return PartitionsPlan(changes.plan(), [decided[wish] for wish in wanted])


def _decide(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    number: int,
    election: Election,
    settings: ControllerSettings,
) -> PartitionRecord | Refusal:
    is_preferred = election is Election.PREFERRED
    if partition.leader == partition.replicas[0] if is_preferred else partition.leader != NO_LEADER:
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, "The partition already has the requested leader.")
    least = min_insync_replicas(topic, settings)
    record = elect(image, topic.topic_id, number, partition, min_insync_replicas=least, election=election)
    if record is not None and record.leader not in {NO_LEADER, partition.leader}:
        return record
    if is_preferred:
        text = f"Replica {partition.replicas[0]} is not in sync, or its broker is not alive."
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text)
    return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "None of the replicas is alive.")

"""Taking over a log directory that Apache Kafka has written.

Kafka keeps what topics there are in a log of its own; on disk beside the partitions only their names and topic ids are left. A broker
whose metadata are new registers the topics whose logs it finds, whole, under their ids, and hands out producer ids that none of them has
seen. A broker that has metadata never does: there, a log without a topic is what is left of a deleted one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.metadata.session import MetadataSession
from lowtide.protocol.types import TopicId
from lowtide.replication.controller import plan_adoption, plan_producer_ids_from
from lowtide.storage.log import Log


async def adopt_topics(session: MetadataSession, logs: Iterable[Log], log: Any) -> None:
    """Register every topic of which all partitions, from 0 on, are among the logs. Errors: those of `MetadataSession.commit`."""
    found: dict[tuple[str, TopicId], dict[int, int]] = {}
    next_producer_id = 0
    for each in logs:
        next_producer_id = max(next_producer_id, *(producer_id + 1 for producer_id in each.producer_state.producers), 0)
        name, partition = each.topic_partition
        found.setdefault((name, each.topic_id), {})[partition] = each.leader_epochs.latest + 1
    for (name, topic_id), epochs in sorted(found.items()):
        if sorted(epochs) != list(range(len(epochs))):
            log.warning("topic found on disk has gaps in its partitions, it is left alone", topic=name, partitions=sorted(epochs))
            continue
        plan = plan_adoption(session.image, name, topic_id, [epochs[number] for number in range(len(epochs))], session.broker_id)
        await session.wait_for(await session.commit(plan))
        log.info("topic found on disk is taken over, with the default configuration", topic=name, partitions=len(epochs))
    if next_producer_id > 0:
        await session.wait_for(await session.commit(plan_producer_ids_from(next_producer_id)))

"""The share coordinator of one broker, as handlers see it: it keeps the states of share partitions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.runtime.coordinator import ShardedCoordinator
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.share_state.share_settings import share_settings
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.turns import run_in_slices
from lowtide.metadata.image import ImageDelta
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace, decode_share_state
from lowtide.protocol.types import Offset, TopicId, parse_topic_id, topic_id_text
from lowtide.storage.directory.log_starts import LogStartIncrement

SHARE_TOPIC: Final = "__share_group_state"

_CONFIGS: Final = (("cleanup.policy", "delete"), ("compression.type", "uncompressed"), ("retention.ms", "-1"))
"""Source: Kafka's `ShareCoordinatorService.shareGroupStateTopicConfigs`."""


def coordinator_key(place: SharePlace) -> str:
    """Returns the key by which a share partition's coordinator is found (FindCoordinator).

        >>> coordinator_key(SharePlace("g", bytes(16), 7))
        'g:AAAAAAAAAAAAAAAAAAAAAA:7'

    Source: Kafka's `SharePartitionKey.asCoordinatorKey`.
    """
    return f"{place.group_id}:{topic_id_text(place.topic_id)}:{place.partition}"


def is_share_key(key: str) -> bool:
    """Returns whether a text is the key of a share partition. Source: `SharePartitionKey.validate`."""
    parts = key.rsplit(":", 2)  # The group's id may have colons itself.
    if len(parts) < len(SharePlace._fields) or not parts[0] or not (parts[2].isascii() and parts[2].isdecimal()):
        return False
    try:
        parse_topic_id(parts[1])
    except ValueError:
        return False
    return True


class ShareCoordinator(ShardedCoordinator[ShareStates]):
    """The states of share partitions that one broker keeps."""

    def __init__(self, broker: BrokerContext, administrator: TopicAdministrator, loop: Any, *, is_alone: bool) -> None:
        self.settings = share_settings(broker.config.values)
        self._loop = loop
        coordinated = CoordinatedTopic(
            name=SHARE_TOPIC,
            configs=_CONFIGS,
            factor_key="share.coordinator.state.topic.replication.factor",
            make_state=lambda: ShareStates(self.settings, self),
            decode=decode_share_state,
        )
        super().__init__(broker, administrator, loop, self.settings, coordinated, is_alone=is_alone)

    # ------------------------------------------------------------------ what the states ask for
    def has_partition(self, topic_id: TopicId, partition: int) -> bool:
        """Returns whether the partition exists."""
        topic = self.broker.metadata.image.topic_by_id(topic_id)
        return topic is not None and 0 <= partition < len(topic.partitions)

    def prune(self, states: ShareStates, start_offset: Offset) -> None:
        """Raises the log start of a partition of the topic: earlier records are not needed."""
        for shard in self._runtime.shards.values():
            log = shard.partition.log
            if shard.state is states and shard.leads and log.log_start_pending < start_offset <= log.high_watermark:
                self.broker.replicas.request_log_starts([LogStartIncrement(log, start_offset)])

    def find_place(self, place: SharePlace) -> Shard[ShareStates] | ErrorCode:
        """Returns the shard of a share partition. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        return self.find(coordinator_key(place))

    def on_image(self, delta: ImageDelta) -> None:
        """Removes the states of deleted topics."""
        deleted = frozenset(topic.topic_id for topic in delta.topics_deleted if topic.name != SHARE_TOPIC)
        if deleted and self._runtime.shards:
            run_in_slices(self._loop, self.broker.clock, self._forget(deleted), lambda: None)

    def _forget(self, deleted: frozenset[TopicId]) -> Iterator[None]:
        for shard in self.each_shard():
            self.carry_out(shard, partial(shard.state.forget_topics, deleted))
            yield

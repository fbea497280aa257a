"""A coordinator's internal topic: which partition has a key, which broker coordinates it, and how the topic is created.

The topic is created when a coordinator is first looked for. Groups never move between partitions, so the number of
partitions must not change: once the topic exists, it counts, not the configuration.

Sources: Kafka's `GroupCoordinatorService.partitionFor`, `AutoTopicCreationManager`, `KafkaApis.getCoordinator`.
"""

from __future__ import annotations

import asyncio
import sys
from functools import lru_cache
from operator import mul
from typing import Final, Protocol

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.new_topics import NewTopic
from lowtide.replication.refusal import Refusal

GROUP_TOPIC: Final = "__consumer_offsets"

CREATION_TIMEOUT_MS: Final = 5_000
"""How long a request for a coordinator waits for the creation. Less than client timeouts."""

CREATION_LIMIT_MS: Final = 30_000
"""How long the creation may take. Source: Kafka's brokers use `request.timeout.ms`."""

Configs = tuple[tuple[str, str], ...]
"""Keys and values of a topic's configuration."""

OF_OFFSETS: Final[Configs] = (("cleanup.policy", "compact"), ("compression.type", "producer"))

_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_HASH_BLOCK: Final = 256
_FACTORS: Final = tuple(pow(31, power, 1 << 32) for power in range(_HASH_BLOCK, -1, -1))
"""The factors of the value before a block and of each unit in it. A name may have 32,767 units."""


REMEMBERED_HASHES: Final = 4096
REMEMBERED_LENGTH_MAX: Final = 255
"""The hashes of short ids are cached, some megabytes at most. A transaction with an offset needs one ten times."""


def java_hash(text: str) -> int:
    """Returns Java's `String.hashCode`, made non-negative as by Kafka's `Utils.abs`.

    >>> java_hash("group"), java_hash("Länge 🌊")
    (98629247, 1248849606)
    """
    return _remembered_hash(text) if len(text) <= REMEMBERED_LENGTH_MAX else _hash(text)


def _hash(text: str) -> int:
    value = 0
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    for start in range(0, len(units), _HASH_BLOCK):
        block = units[start : start + _HASH_BLOCK]
        factors = _FACTORS[-len(block) - 1 :]
        value = (value * factors[0] + sum(map(mul, block, factors[1:]))) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value & 0x8000_0000 else value
    return 0 if signed == -(1 << 31) else abs(signed)


_remembered_hash = lru_cache(REMEMBERED_HASHES)(_hash)


def forget_hashes() -> None:
    """Clears the cache of hashes. Each is a small object that may keep a megabyte of freed memory from the system."""
    _remembered_hash.cache_clear()


class TopicSettings(Protocol):
    """How a coordinator's topic is created."""

    @property
    def topic_partition_count(self) -> int: ...
    @property
    def topic_replication_factor(self) -> int: ...
    @property
    def topic_segment_bytes(self) -> int: ...
    @property
    def topic_minimum_in_sync(self) -> int | None: ...


class OffsetsTopic:
    """The topic of committed offsets, and the partition of each group. Other coordinators use it for their topics."""

    def __init__(
        self,
        broker: BrokerContext,
        administrator: TopicAdministrator,
        settings: TopicSettings,
        *,
        factor_is_given: bool,
        name: str = GROUP_TOPIC,
        configs: Configs = OF_OFFSETS,
    ) -> None:
        """`configs` are what the topic sets besides `settings`.

        `factor_is_given`: the replication factor was configured. Otherwise fewer brokers than its default are enough.
        """
        self.name = name
        self._configs = configs
        self._broker = broker
        self._administrator = administrator
        self._settings = settings
        self._factor_is_given = factor_is_given
        self._creation: asyncio.Future[None] | None = None
        self._logged_reason = ""
        """The last logged reason why the topic could not be created."""

    @property
    def exists(self) -> bool:
        """Whether the image has the topic."""
        return self.name in self._broker.metadata.image.topics

    @property
    def partition_count(self) -> int:
        """The number of partitions that the topic has or will have."""
        topic = self._broker.metadata.image.topics.get(self.name)
        return len(topic.partitions) if topic is not None else self._settings.topic_partition_count

    def partition_of(self, group_id: str) -> int:
        """Returns the partition of a key."""
        topic = self._broker.metadata.image.topics.get(self.name)
        count = len(topic.partitions) if topic is not None else self._settings.topic_partition_count
        # As `java_hash`, inlined for speed.
        return (_remembered_hash(group_id) if len(group_id) <= REMEMBERED_LENGTH_MAX else _hash(group_id)) % count

    def coordinator_of(self, group_id: str) -> BrokerImage | ErrorCode:
        """Returns the broker that coordinates a key: the leader of its partition. Errors: COORDINATOR_NOT_AVAILABLE."""
        image = self._broker.metadata.image
        topic = image.topics.get(self.name)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        leader = topic.partitions[java_hash(group_id) % len(topic.partitions)].leader
        found = image.brokers.get(leader) if leader != NO_LEADER else None
        return found if found is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def create(self) -> None:
        """Creates the topic, once for all callers, and waits for it for a limited time."""
        if self._creation is None or self._creation.done():
            self._creation = asyncio.get_running_loop().create_future()
            self._broker.tasks.spawn(self._create(self._creation), name=f"create topic {self.name}")
        try:
            async with asyncio.timeout(CREATION_TIMEOUT_MS / 1000):
                await asyncio.shield(self._creation)
        except TimeoutError:
            return

    async def _create(self, done: asyncio.Future[None]) -> None:
        settings, log = self._settings, self._broker.log
        factor = settings.topic_replication_factor
        image = self._broker.metadata.image
        brokers = len(image.brokers) + len(image.fenced_brokers)
        if not self._factor_is_given and brokers < factor:
            if not self._logged_reason:
                log.info(
                    "a coordinator's topic gets fewer replicas than the default because there are fewer brokers",
                    topic=self.name,
                    replicas=brokers,
                )
            factor = brokers
        configs = [*self._configs, ("segment.bytes", str(settings.topic_segment_bytes))]
        if settings.topic_minimum_in_sync is not None:
            configs.append(("min.insync.replicas", str(min(settings.topic_minimum_in_sync, factor))))
        topic = NewTopic(self.name, settings.topic_partition_count, factor)
        try:
            created = await self._administrator.create(topic, configs, CREATION_LIMIT_MS)
            reason = ""
            if isinstance(created, Refusal) and created.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                reason = created.message
                # A failure that may pass by itself, such as a missing controller, is a warning.
                report = log.warning if created.error_code.retriable else log.error
                if reason and reason != self._logged_reason:
                    report("a coordinator's topic could not be created", topic=self.name, reason=reason)
            self._logged_reason = reason
        finally:
            done.set_result(None)

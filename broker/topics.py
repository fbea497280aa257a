"""Making and deleting topics: the steps between a request and a topic that is served, or gone.

Decisions are the controller's; here they are committed, waited for in the image, and waited for on disk. A topic is answered as made when
its partitions can be produced to, as deleted when its name can be used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lowtide.broker.config_topics import TopicConfigFault, validate_topic_configs
from lowtide.broker.context import BrokerContext
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.store import AmbiguousError, MetadataStoreError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicId
from lowtide.replication.controller import (
    NewTopic,
    Refusal,
    TopicCreation,
    TopicDeletion,
    plan_create_topic,
    plan_delete_topic,
    resolve_deletions,
)


class TopicAdministrator:
    """Topics of one cluster, as seen from this broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self.broker = broker
        self._creating: set[str] = set()

    def plan_creation(self, topic: NewTopic, configs: Sequence[tuple[str, str | None]]) -> TopicCreation | Refusal:
        """How a topic would be made; `configs` as the client lists them, the last of a name counts."""
        broker = self.broker
        checked = validate_topic_configs(broker.config, dict(configs))
        refusal = Refusal(*checked) if isinstance(checked, TopicConfigFault) else None
        values = {} if isinstance(checked, TopicConfigFault) else checked
        wanted = NewTopic(topic.name, topic.partition_count, topic.replication_factor, topic.assignments, values)
        return plan_create_topic(
            broker.metadata.image,
            wanted,
            default_partition_count=broker.config.num_partitions,
            default_replication_factor=broker.config.default_replication_factor,
            random=broker.random,
            config_refusal=refusal,
        )

    async def create(self, creation: TopicCreation, timeout_ms: int) -> Refusal | None:
        """Make a planned topic; return when it is served. Refusals: see `_commit`; REQUEST_TIMED_OUT when it isn't served in time."""
        refusal = await self._commit(creation.plan)
        if refusal is not None:
            return refusal
        return await self._settled(timeout_ms, "created")

    def resolve(self, wanted: Sequence[tuple[str | None, TopicId]]) -> list[TopicDeletion]:
        """What a DeleteTopics means."""
        return resolve_deletions(self.broker.metadata.image, wanted)

    async def delete(self, deletion: TopicDeletion, timeout_ms: int) -> Refusal | None:
        """Delete a topic; return when its name can be used again. Refusals as of `create`."""
        assert deletion.topic is not None
        refusal = await self._commit(plan_delete_topic(deletion.topic))
        if refusal is not None:
            return refusal
        return await self._settled(timeout_ms, "deleted")

    def create_automatically(self, name: str) -> None:
        """Begin to make a topic that a client asked for by name, once."""
        if name not in self._creating:
            self._creating.add(name)
            self.broker.tasks.spawn(self._create_automatically(name), name=f"create topic {name}")

    async def _create_automatically(self, name: str) -> None:
        try:
            creation = self.plan_creation(NewTopic(name), ())
            outcome = creation if isinstance(creation, Refusal) else await self._commit(creation.plan)
            if outcome is not None and outcome.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                self.broker.log.warning("topic was not created automatically", topic=name, reason=outcome.message)
            elif outcome is None:
                self.broker.log.info("topic created automatically", topic=name)
        finally:
            self._creating.discard(name)

    async def _commit(self, plan: ChangePlan) -> Refusal | None:
        """Write a plan and wait until the image shows it.

        Refusals: NOT_CONTROLLER, REQUEST_TIMED_OUT when the store can't say, COORDINATOR_NOT_AVAILABLE when it can't be reached.
        """
        metadata = self.broker.metadata
        try:
            await metadata.wait_for(await metadata.commit(plan))
        except ConflictError as error:
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"{error}; try again")
        except (NotControllerError, FencedError) as error:
            return Refusal(ErrorCode.NOT_CONTROLLER, str(error))
        except AmbiguousError as error:
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
        except (SessionError, MetadataStoreError) as error:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        return None

    async def _settled(self, timeout_ms: int, what: str) -> Refusal | None:
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self.broker.replicas.settled()
        except TimeoutError:
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"The topic is {what}, but not everywhere yet")
        return None

"""Creates, grows and deletes topics.

The controller decides. This module commits the decisions, and waits until the image shows them and the disk has them. A
creation or growth is answered when its partitions accept records, a deletion when the name can be used again.

Guards: changes of topics whose names could collide are applied one after the other, each decided on an image that
shows the earlier ones. So of two equal requests, the second gets the answer that it would have got later. Other
conflicts are decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from lowtide.broker.administration.committing import (
    GIVEN_UP,
    MAX_PLANS,
    TOO_LATE,
    P,
    check_timeout,
    commit,
    decide_and_commit,
    newer_image,
)
from lowtide.broker.administration.creation_limits import CreationLimits
from lowtide.broker.administration.envelopes import OF_THE_BROKER, Origin
from lowtide.broker.administration.forwarding import OWN_IMAGE_MS, Forwarder
from lowtide.broker.client_waits import client_wait
from lowtide.broker.config.topic_config import TopicConfigFault, validate_topic_configs
from lowtide.broker.context import BrokerContext
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.changes import NO_CHANGE
from lowtide.metadata.errors import ConflictError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.types import TopicId
from lowtide.replication.deletions import TopicDeletion, plan_deletions, resolve_deletions
from lowtide.replication.new_partitions import NewPartitions, TopicGrowth, plan_new_partitions
from lowtide.replication.new_topics import (
    BROKER_DEFAULT,
    MAX_REQUEST_PARTITIONS,
    TopicCreation,
    TopicSpec,
    plan_create_topic,
)
from lowtide.replication.refusal import Refusal

AUTOMATIC_CREATION_TIMEOUT_MS: Final = 30_000
"""The time limit of an automatic creation. Source: Kafka's `request.timeout.ms`, which its brokers use for this."""


_QUIET: Final = frozenset({ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Refusals of automatic creations that aren't logged, because the client asks again."""


Charge = Callable[[RequestContext, int], int]
"""Charges partitions to the client of a request. Returns how long it must wait first, or 0 if they are charged."""


class TopicAdministrator:
    """Changes the topics of the cluster from this broker."""

    def __init__(
        self, broker: BrokerContext, forwarder: Forwarder | None = None, charge: Charge = lambda _asker, _count: 0
    ) -> None:
        """Asks the controller through `forwarder`. `charge` counts partitions that are created automatically."""
        self.broker = broker
        self.forwarder = forwarder
        self._charge = charge
        self.limits = CreationLimits(broker)
        self._creating: set[str] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def plan_creation(self, topic: TopicSpec, configs: Sequence[tuple[str, str | None]]) -> TopicCreation | Refusal:
        """Plans the creation of a topic. Of repeated `configs`, the last one counts."""
        broker = self.broker
        checked = validate_topic_configs(broker.config, dict(configs))
        refusal = Refusal(*checked) if isinstance(checked, TopicConfigFault) else None
        values = {} if isinstance(checked, TopicConfigFault) else checked
        wanted = TopicSpec(topic.name, topic.partition_count, topic.replication_factor, topic.assignments, values)
        planned = plan_create_topic(
            broker.metadata.image,
            wanted,
            default_partition_count=broker.config.num_partitions,
            default_replication_factor=broker.config.default_replication_factor,
            random=broker.random,
            config_refusal=refusal,
        )
        if isinstance(planned, Refusal):
            return planned
        return self.limits.check_partitions(topic.name, planned.partition_count * planned.replication_factor) or planned

    async def create(
        self,
        topic: TopicSpec,
        configs: Sequence[tuple[str, str | None]],
        timeout_ms: int,
        origin: Origin = OF_THE_BROKER,
    ) -> TopicCreation | Refusal:
        """Creates a topic, on whichever broker is controller. Returns when it is served here.

        Refusals: as for `create_here`. If another broker creates it, open numbers become this broker's defaults and the
        returned plan is empty. It counts for the client that is its `origin`.
        """
        forwarder, version = self.forwarder, CreateTopicsRequest.VERSIONS.high
        if forwarder is None or self.broker.metadata.is_controller or timeout_ms <= 0:
            return await self.create_here(topic, configs, timeout_ms)
        answer = await forwarder.ask(
            ApiKey.CREATE_TOPICS, version, self._creation_request(topic, configs, timeout_ms), timeout_ms, origin
        )
        if answer is None:
            return await self.create_here(topic, configs, timeout_ms)
        if isinstance(answer, Refusal):
            return answer
        (row,) = answer.topics
        if row.error_code != ErrorCode.NONE:
            return Refusal(ErrorCode(row.error_code), row.error_message or "")
        await forwarder.wait_until(lambda image: topic.name in image.topics, OWN_IMAGE_MS)
        await self._settled(asyncio.get_running_loop().time() + OWN_IMAGE_MS / 1000)
        return TopicCreation(NO_CHANGE, row.topic_id, row.num_partitions, row.replication_factor)

    def _creation_request(
        self, topic: TopicSpec, configs: Sequence[tuple[str, str | None]], timeout_ms: int
    ) -> CreateTopicsRequest:
        config, is_open = self.broker.config, not topic.assignments
        count, factor = topic.partition_count, topic.replication_factor
        return CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=config.num_partitions if count == BROKER_DEFAULT and is_open else count,
                    replication_factor=config.default_replication_factor
                    if factor == BROKER_DEFAULT and is_open
                    else factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=number, broker_ids=list(ids))
                        for number, ids in topic.assignments
                    ],
                    configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs],
                )
            ],
            timeout_ms=timeout_ms,
            validate_only=False,
        )

    async def create_here(
        self, topic: TopicSpec, configs: Sequence[tuple[str, str | None]], timeout_ms: int
    ) -> TopicCreation | Refusal:
        """Creates a topic, as controller. Returns when it is served here.

        Refusals: those of the plan and of `decide_and_commit`, and REQUEST_TIMED_OUT if it isn't served in time.
        """
        return await self._change(topic.name, lambda: self.plan_creation(topic, configs), timeout_ms, "created")

    def plan_growth(self, wanted: NewPartitions, room: int = MAX_REQUEST_PARTITIONS) -> TopicGrowth | Refusal:
        """Plans additional partitions. `room`: how many the request may still add."""
        image = self.broker.metadata.image
        planned = plan_new_partitions(image, wanted, random=self.broker.random, room=room)
        if isinstance(planned, Refusal):
            return planned
        factor = len(image.topics[wanted.name].partitions[0].replicas)
        return self.limits.check_partitions(wanted.name, planned.added * factor) or planned

    async def grow(
        self, wanted: NewPartitions, timeout_ms: int, room: int = MAX_REQUEST_PARTITIONS
    ) -> TopicGrowth | Refusal:
        """Adds partitions to a topic. Returns when they are served. Refusals: as for `create`."""
        return await self._change(wanted.name, lambda: self.plan_growth(wanted, room), timeout_ms, "grown")

    def resolve(self, wanted: Sequence[tuple[str | None, TopicId]]) -> list[TopicDeletion]:
        """Resolves the names and ids of a DeleteTopics request."""
        return resolve_deletions(self.broker.metadata.image, wanted)

    async def delete(self, deletions: Sequence[TopicDeletion], timeout_ms: int) -> list[Refusal | None]:
        """Deletes topics, many in each transaction. Returns their outcomes when the names can be used again.

        Refusals: as for `create`.
        """
        if (too_late := check_timeout(timeout_ms)) is not None:
            return [too_late] * len(deletions)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        async with AsyncExitStack() as turns:
            # In the same order for all requests, so that no two wait for each other.
            for name in sorted({_unified(deletion.name or "") for deletion in deletions}):
                if not await turns.enter_async_context(self._turn(name, deadline)):
                    return [TOO_LATE] * len(deletions)
            outcomes = await self._delete_in_groups(deletions, deadline)
        if not await self._settled(deadline):
            late = Refusal(ErrorCode.REQUEST_TIMED_OUT, "The topic is deleted, but not everywhere yet")
            return [late if refusal is None else refusal for refusal in outcomes]
        return outcomes

    async def _delete_in_groups(self, deletions: Sequence[TopicDeletion], deadline: float) -> list[Refusal | None]:
        """Decides and commits until the image shows that each topic is gone, or was refused.

        Conflicts are decided again.
        """
        metadata = self.broker.metadata
        left = dict(enumerate(deletions))
        refusals: dict[int, Refusal] = {}
        committed: set[int] = set()
        for _ in range(MAX_PLANS):
            seen = metadata.image.revision
            groups, gone = plan_deletions(metadata.image, left)
            refused = {number: refusal for number, refusal in gone.items() if number not in committed}
            conflicts = False
            for group in groups:
                if asyncio.get_running_loop().time() > deadline:
                    refused |= dict.fromkeys(group.members, TOO_LATE)
                    continue
                try:
                    refusal = await commit(metadata, group.plan)
                except ConflictError:
                    conflicts = True
                    continue
                if refusal is not None:
                    refused |= dict.fromkeys(group.members, refusal)
                else:
                    committed.update(group.members)
            refusals |= refused
            # The image is examined even after a commit: if the answer was lost, only the first topic is known to be
            # gone.
            left = {
                number: deletion
                for number, deletion in left.items()
                if number not in refusals and metadata.image.topic_by_id(deletion.topic_id) is not None
            }
            if conflicts and (refusal := await newer_image(metadata, seen, deadline)) is not None:
                refusals |= dict.fromkeys(left, refusal)
                break
            if not left:
                break
        else:
            refusals |= dict.fromkeys(left, GIVEN_UP)
        return [refusals.get(number) for number in range(len(deletions))]

    def create_automatically(self, name: str, asker: RequestContext) -> None:
        """Starts the creation of a topic that a client asked for by name, unless one is running or there are too many.

        The client asks again. The topic counts for its quota of changed partitions, on the controller. Source: Kafka's
        `DefaultAutoTopicCreationManager`.
        """
        if name in self._creating or not self.limits.may_create_automatically(asker.connection, len(self._creating)):
            return
        if self.broker.metadata.is_controller and self._charge(asker, self.broker.config.num_partitions):
            return
        self._creating.add(name)
        self.broker.tasks.spawn(self._create_automatically(name, Origin.of(asker)), name=f"create topic {name}")

    async def _create_automatically(self, name: str, origin: Origin) -> None:
        try:
            outcome = await self.create(TopicSpec(name), (), AUTOMATIC_CREATION_TIMEOUT_MS, origin)
            if not isinstance(outcome, Refusal):
                self.broker.log.info("topic created automatically", topic=name)
            elif outcome.error_code not in _QUIET and self.limits.may_log():
                self.broker.log.warning("topic was not created automatically", topic=name, reason=outcome.message)
        finally:
            self._creating.discard(name)

    async def _change(self, name: str, decide: Callable[[], P | Refusal], timeout_ms: int, what: str) -> P | Refusal:
        """Decides a topic's change in its turn, makes it, and waits until it is carried out here.

        Without any time nothing is done, as in Kafka. Refusals: those of `decide` and `commit`, and REQUEST_TIMED_OUT.
        """
        if (too_late := check_timeout(timeout_ms)) is not None:
            return too_late
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        async with self._turn(name, deadline) as has_turn:
            planned = await decide_and_commit(self.broker.metadata, decide, deadline) if has_turn else TOO_LATE
        if isinstance(planned, Refusal) or await self._settled(deadline):
            return planned
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"The topic is {what}, but not everywhere yet")

    async def _settled(self, deadline: float) -> bool:
        """Waits until this broker has carried out all that the image says. Returns False after the deadline."""
        try:
            async with client_wait(deadline):
                await self.broker.assigned.settled()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def _turn(self, name: str, deadline: float) -> AsyncIterator[bool]:
        """Waits until no other request changes this topic or one with a colliding name.

        Yields False after the deadline.

        A lock exists as long as a request holds it or waits for it.
        """
        lock = self._turns.setdefault(_unified(name), asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline):
                await lock.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def _unified(name: str) -> str:
    """Replaces `.` by `_`, because names that differ only in these collide."""
    return name.replace(".", "_")

"""ACLs of a simulated cluster that change while it runs; an administrator checks that every broker applies them.

A1: an operation that is requested after its denial was answered with success succeeds at no broker. A broker that has
not confirmed the denial has lost its registration, or is fenced before its image is that old. Each rule is different
and created once, because a removal whose answer was lost may happen later. All clients have one principal; only a topic
that nothing else uses is denied.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lowtide.broker.authorizer.acls import PatternType, Permission
from lowtide.broker.authorizer.resources import Operation, ResourceType
from lowtide.broker.config.keys_security import STANDARD_AUTHORIZER
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_world import ClusterWorld

GUARDED_TOPIC: Final = "zz-guarded"
"""No other topic has its first letter, so denials by prefix apply to it alone."""

SETTINGS: Final[Mapping[str, str]] = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
"""Resources without rules are open, for the other clients of a run."""

MANY: Final = 150
"""More rules than a transaction of the store holds."""

_CHANGE_MS: Final = 40_000
"""A change takes at most thirty seconds, and five until all brokers confirm it."""

_PROBE_MS: Final = 1_000
_PRINCIPALS: Final = ("User:ANONYMOUS", "User:*")
_CREATE_VERSION, _DELETE_VERSION, _PRODUCE_VERSION, _LIST_OFFSETS_VERSION = 3, 3, 9, 8
_LATEST: Final = -1


def _denials() -> Iterator[AclCreation]:
    """Rules that deny this client something, each with another pattern, principal or operation."""
    patterns = [(PatternType.PREFIXED, GUARDED_TOPIC[:length]) for length in range(1, len(GUARDED_TOPIC) + 1)]
    for pattern, name in [*patterns, (PatternType.LITERAL, GUARDED_TOPIC)]:
        for principal in _PRINCIPALS:
            for operation in (Operation.ALL, Operation.WRITE):
                yield _rule(name, operation, principal=principal, pattern=pattern, permission=Permission.DENY)


def _rule(
    name: str, operation: Operation, *, principal: str, pattern: PatternType, permission: Permission, host: str = "*"
) -> AclCreation:
    return AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


class AuthorizationWork:
    """The administrator of one run. Does nothing if ACLs are not part of it."""

    key = "administrator of rules"

    def __init__(self, cluster: ClusterWorld, random: Random, kinds: tuple[str, ...]) -> None:
        self.is_active = "authorization" in kinds
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random
        self._denials = random.sample(list(_denials()), len(list(_denials())))
        self._client = cluster.client("rules") if self.is_active else None

    def topics(self) -> dict[str, int]:
        return {GUARDED_TOPIC: 1} if self.is_active else {}

    def actors(self) -> list[AuthorizationWork]:
        return [self] if self.is_active else []

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Denies, checks every broker, and allows again."""
        allowed = _rule(
            GUARDED_TOPIC,
            Operation.ALL,
            principal=_PRINCIPALS[0],
            pattern=PatternType.LITERAL,
            permission=Permission.ALLOW,
        )
        while self._denials and not until.is_set():
            denial = self._denials.pop()
            if await self._create([allowed]):
                await self._probe(Operation.ALL, denied=False)
            restores = self._cluster.shared.restores
            if await self._create(self._with_others(denial)):
                await self._probe(Operation(denial.operation), denied=True, restores=restores)
            while not await self._remove(denial.permission_type) and not until.is_set():
                await self._pause(pause_s)
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        await asyncio.sleep(self._random.uniform(0.2, 2.0) * pause_s)

    def _with_others(self, denial: AclCreation) -> list[AclCreation]:
        """Returns the denial, sometimes with too many others for a single transaction."""
        if self._random.random() < 0.7:  # noqa: PLR2004
            return [denial]
        others = [
            _rule(
                GUARDED_TOPIC,
                Operation.READ,
                principal="User:other",
                pattern=PatternType.LITERAL,
                permission=Permission.DENY,
                host=f"10.{len(self._denials)}.0.{number}",
            )
            for number in range(MANY)
        ]
        return [*others, denial]

    async def _create(self, rules: list[AclCreation]) -> bool:
        """Returns whether all were created."""
        answer = await self._ask(self._random_broker(), CreateAclsRequest(creations=rules), _CREATE_VERSION, _CHANGE_MS)
        if answer is None:
            return False
        codes = {row.error_code for row in answer.results}
        if len(codes) > 1:
            self._cluster.chronicle.violate(f"A2: rules of one request were answered {codes}")
        return codes == {ErrorCode.NONE}

    async def _remove(self, permission: int) -> bool:
        wanted = DeleteAclsFilter(
            resource_type_filter=ResourceType.TOPIC,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=permission,
        )
        answer = await self._ask(
            self._random_broker(), DeleteAclsRequest(filters=[wanted]), _DELETE_VERSION, _CHANGE_MS
        )
        return answer is not None and answer.filter_results[0].error_code == ErrorCode.NONE

    async def _probe(self, operation: Operation, *, denied: bool, restores: int = 0) -> None:
        """Asks every broker, some repeatedly, for the denied operation."""
        cluster = self._cluster
        if denied:
            cluster.note(f"{operation.name} is denied on {GUARDED_TOPIC}, as was answered")
        for machine in [*cluster.shuffled(), *cluster.shuffled()]:
            for wanted, request, version in self._requests(operation):
                sent_s = cluster.loop.time()
                answer = await self._ask(machine.broker_id, request, version, _PROBE_MS)
                if answer is None:
                    continue
                code = _code_of(answer)
                self.counts[f"{'denied' if denied else 'allowed'} {ErrorCode(code).name}"] += 1
                if denied and code == ErrorCode.NONE and cluster.shared.restores == restores:
                    cluster.chronicle.violate(
                        f"A1: {machine.host} let {wanted} succeed that was asked for at {sent_s:.4f} s"
                    )
            await self._pause(0.1)

    def _requests(self, operation: Operation) -> Iterator[tuple[str, Any, int]]:
        batch = build_batch([(1_700_000_000_000, None, b"guarded", ())])
        data = TopicProduceData(name=GUARDED_TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        yield "a Produce", ProduceRequest(acks=1, timeout_ms=_PROBE_MS, topic_data=[data]), _PRODUCE_VERSION
        if operation == Operation.ALL:
            rows = [ListOffsetsPartition(partition_index=0, timestamp=_LATEST)]
            topics = [ListOffsetsTopic(name=GUARDED_TOPIC, partitions=rows)]
            yield "a ListOffsets", ListOffsetsRequest(replica_id=-1, topics=topics), _LIST_OFFSETS_VERSION

    def _random_broker(self) -> int:
        return self._random.choice(self._cluster.machines).broker_id

    async def _ask(self, broker_id: int, request: Any, version: int, timeout_ms: int) -> Any:
        """Returns None without an answer."""
        assert self._client is not None
        try:
            return await self._client.ask(broker_id, request, version, timeout_ms=timeout_ms, must_answer=False)
        except OSError:
            return None


def _code_of(answer: Any) -> int:
    topic = answer.responses[0] if hasattr(answer, "responses") else answer.topics[0]
    row = topic.partition_responses[0] if hasattr(topic, "partition_responses") else topic.partitions[0]
    return int(row.error_code)

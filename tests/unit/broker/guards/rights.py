"""The table of rights, `rights.json`, and what both of its tests need: the one on Lowtide and the one on Apache Kafka.

A row has a request and what it needs: sets of rights, of which one set suffices. A right is an operation, a type, a
name, and what is answered without it: Kafka's code, or `hidden:` and what is not in the answer then. The rights of a
set are in the order in which Kafka asks for them. A row holds for each version of its API, or for those that it names.
It is tried in every one of them, with every kind of rules. Source: `KafkaApis` and `ControllerApis` of Apache Kafka
4.3.1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from lowtide.broker.authorizer.resources import Operation, ResourceType
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import API, ApiKey, api_name
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest
from lowtide.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.simulation.client import WireClient

KEYS = {api_name(key): key for key in API}
TABLE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "rights.json").read_text(encoding="utf-8"))
ROWS = [row for row in TABLE if row["api"] in KEYS]
"""Those that are served; the table has requests that are to come, too."""

ALLOW, DENY = 3, 2
LITERAL, PREFIXED = 3, 4
NOT_OF_A_LOGIN = 64
"""DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: a client without a login asked for tokens."""

DENIALS = frozenset({29, 30, 31, 53, NOT_OF_A_LOGIN, 65})
OF_TOKENS = frozenset(
    {"CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"}
)


class Asker(Enum):
    """Who asks: the user whose rights are tried, one of `super.users`, or a client that has not logged in."""

    USER = "User:carol"
    SUPER_USER = "User:root"
    ANONYMOUS = "User:ANONYMOUS"


WHO = Asker.USER.value
OWNER = "zoe"
"""Has a delegation token."""

RECORD = (0, None, b"x", ())
RECORDS = {
    "one": build_batch([RECORD]),
    "transactional": build_batch(
        [RECORD], is_transactional=True, producer_id=1_000_000, producer_epoch=0, base_sequence=0
    ),
}


class Right(NamedTuple):
    """One right, and what is answered without it."""

    operation: Operation
    kind: ResourceType
    name: str
    answer: str

    def rule(self, *, permission: int = ALLOW) -> AclRecord:
        return AclRecord(self.kind, self.name, LITERAL, WHO, "*", self.operation, permission)

    def prefixed(self, *, permission: int = ALLOW) -> AclRecord:
        """By the first letter of the name. The cluster has one name, which no prefix stands for."""
        if self.kind == ResourceType.CLUSTER:
            return self.rule(permission=permission)
        return AclRecord(self.kind, self.name[:1], PREFIXED, WHO, "*", self.operation, permission)


def rights_of(row: dict[str, Any], names: dict[str, str]) -> list[list[Right]]:
    """`names` has what names in the table stand for that come to be with the broker."""
    sets = [[text.split() for text in together] for together in row["needs"]]
    return [
        [
            Right(
                getattr(Operation, words[0]), getattr(ResourceType, words[1]), names.get(words[2], words[2]), words[3]
            )
            for words in together
        ]
        for together in sets
    ]


def versions_of(row: dict[str, Any]) -> range:
    spec = API[KEYS[row["api"]]]
    low, _, high = row.get("versions", f"{spec.min_version}-{spec.max_version}").partition("-")
    return range(int(low), int(high) + 1)


class Case(NamedTuple):
    """Rules, who asks, and the answer that is expected: empty where nothing is denied."""

    name: str
    rules: list[AclRecord]
    answer: str = ""
    asker: Asker = Asker.USER


def everything(permission: int, principal: str = WHO) -> list[AclRecord]:
    names = {ResourceType.CLUSTER: "kafka-cluster"}
    return [
        AclRecord(kind, names.get(kind, "*"), LITERAL, principal, "*", Operation.ALL, permission)
        for kind in list(ResourceType)[1:]
    ]


def cases(row: dict[str, Any], names: dict[str, str]) -> Iterator[Case]:
    """Rules of each kind, and what they come to. `names` as in `rights_of`."""
    sets = rights_of(row, names)
    first = sets[0][0].answer if sets else ""
    unknown = str(NOT_OF_A_LOGIN) if row["api"] in OF_TOKENS else ""
    yield Case("no right", [], first)
    yield Case("rights of another principal", everything(ALLOW, "User:alice"), first)
    yield Case("super user", everything(DENY, "User:*"), asker=Asker.SUPER_USER)
    yield Case("rights of all users", everything(ALLOW, "User:*"))
    yield Case("everything denied", [*everything(ALLOW), *everything(DENY, "User:*")], first)
    yield Case("anonymous without a right", everything(ALLOW), unknown or first, Asker.ANONYMOUS)
    yield Case("anonymous with all rights", everything(ALLOW, "User:*"), unknown, Asker.ANONYMOUS)
    for rights in sets:
        yield Case("the rights", [right.rule() for right in rights])
        yield Case("prefixes", [right.prefixed() for right in rights])
        for right in rights:
            if len(rights) > 1 and not _is_alternative(right, rights, sets):
                yield Case(
                    f"all but {right.operation.name}",
                    [each.rule() for each in rights if each is not right],
                    right.answer,
                )
    if len(sets) == 1:
        for right in sets[0]:
            yield Case(
                f"{right.operation.name} denied", [*everything(ALLOW), right.rule(permission=DENY)], right.answer
            )
            yield Case("denied by prefix", [*everything(ALLOW), right.prefixed(permission=DENY)], right.answer)


def _is_alternative(right: Right, rights: list[Right], sets: list[list[Right]]) -> bool:
    """Whether the others of its set are enough for another one."""
    left = {(each.operation, each.kind, each.name) for each in rights if each is not right}
    return any({(each.operation, each.kind, each.name) for each in other} <= left for other in sets)


def request_of(row: dict[str, Any], ids: dict[str, bytes]) -> Any:
    request = _built(API[KEYS[row["api"]]].request, row["request"], ids)
    for topic in getattr(request, "topic_data", ()):
        for partition in topic.partition_data:
            partition.records = RECORDS[partition.records]
    return request


def _built(kind: Any, value: Any, ids: dict[str, bytes]) -> Any:
    """A message out of the table's JSON."""
    if isinstance(value, list):
        return [_built(_message_in(kind), each, ids) for each in value]
    if isinstance(value, dict):
        message = _message_in(kind)
        hints = get_type_hints(message)
        return message(**{name: _built(hints[name], each, ids) for name, each in value.items()})
    if isinstance(value, str) and value.startswith("id:"):
        return ids[value[3:]]
    if isinstance(value, str) and value.startswith("hex:"):
        return bytes.fromhex(value[4:])
    return value


def _message_in(kind: Any) -> Any:
    """The message type in `list[X] | None`."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    for each in get_args(kind) if get_origin(kind) is not None or isinstance(kind, UnionType) else ():
        found = _message_in(each)
        if found is not None:
            return found
    return None


def wrong_in(row: dict[str, Any], names: dict[str, str], case: Case, answer: Any) -> str:
    """What is wrong with an answer; empty if nothing is."""
    refusals, shown = _codes(answer) & DENIALS, _named(answer)
    if case.answer.startswith("hidden:"):
        name = case.answer[7:]
        return f"{name} is shown, {refusals}" if refusals or name in shown else ""
    if case.answer:
        return "" if refusals == {int(case.answer)} else f"{refusals or 'nothing'} instead of {case.answer}"
    answers = [right.answer for rights in rights_of(row, names) for right in rights]
    missing = {each[7:] for each in answers if each.startswith("hidden:")} - shown
    return f"denied: {refusals}" if refusals else f"hidden: {missing}" if missing else ""


def _codes(value: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(value, list | tuple):
        return set().union(*map(_codes, value))
    if not isinstance(value, msgspec.Struct):
        return set()
    own = {getattr(value, name) for name in value.__struct_fields__ if name.endswith("error_code")}
    return own.union(*(_codes(getattr(value, name)) for name in value.__struct_fields__))


def _named(value: Any) -> set[str]:
    """Every text in an answer."""
    if isinstance(value, list | tuple):
        return set().union(*map(_named, value))
    if isinstance(value, msgspec.Struct):
        return set().union(*(_named(getattr(value, name)) for name in value.__struct_fields__))
    return {value} if isinstance(value, str) else set()


SHOWN = {
    ResourceType.TOPIC: {3, 4, 5, 6, 7, 8, 10, 11},
    ResourceType.GROUP: {3, 6, 8, 10, 11},
    ResourceType.CLUSTER: {5, 7, 8, 9, 10, 11, 12},
}
"""The operations that a client is shown of itself, where it asks for them and has the right to."""

IMPLIED = {Operation.READ: 8, Operation.WRITE: 8, Operation.DELETE: 8, Operation.ALTER: 8, Operation.ALTER_CONFIGS: 10}


def rules_of_operation(operation: Operation) -> list[AclRecord]:
    """One operation, and what it takes to see anything, on the topic, the group and the cluster."""
    places = [(ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g"), (ResourceType.CLUSTER, "kafka-cluster")]
    return [Right(each, kind, name, "").rule() for each in {operation, Operation.DESCRIBE} for kind, name in places]


def bits_of_operation(operation: Operation) -> dict[str, int]:
    """What each answer shows under those rules: a bit for each operation."""
    granted = (
        set(range(16)) if operation == Operation.ALL else {operation, Operation.DESCRIBE, IMPLIED.get(operation, 8)}
    )
    topic, group, cluster = (sum(1 << each for each in shown & granted) for shown in SHOWN.values())
    return {
        "Metadata": topic,
        "DescribeTopicPartitions": topic,
        "Metadata of the cluster": cluster,
        "DescribeCluster": cluster,
        "DescribeGroups": group,
    }


async def bits_shown(client: WireClient) -> dict[str, int]:
    """What a client is shown of the operations that it may do."""
    by_name = [MetadataRequestTopic(name="t")]
    metadata = MetadataRequest(
        topics=by_name, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    answer = await client.request(metadata, 10)
    page = await client.request(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0)
    cluster = await client.request(DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    groups = await client.request(DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 5)
    return {
        "Metadata": answer.topics[0].topic_authorized_operations,
        "DescribeTopicPartitions": page.topics[0].topic_authorized_operations,
        "Metadata of the cluster": answer.cluster_authorized_operations,
        "DescribeCluster": cluster.cluster_authorized_operations,
        "DescribeGroups": groups.groups[0].authorized_operations,
    }


async def prepare(client: WireClient) -> None:
    """Creates what the requests name: a group with an offset in the topic `t`, and a transactional id."""
    for kind, name in ((0, "g"), (1, "x")):
        while (await client.request(FindCoordinatorRequest(key=name, key_type=kind), 3)).error_code:
            await asyncio.sleep(0.1)
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    commit = OffsetCommitRequest(
        group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
    )
    while (await client.request(commit, 8)).topics[0].partitions[0].error_code:
        await asyncio.sleep(0.1)
    while (
        await client.request(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4)
    ).error_code:
        await asyncio.sleep(0.1)


def served_without_a_row() -> set[tuple[ApiKey, int]]:
    """Versions that are served and that no row has. A login needs no right."""
    covered = {(KEYS[row["api"]], version) for row in ROWS for version in versions_of(row)}
    served = {(key, version) for key, spec in API.items() for version in range(spec.min_version, spec.max_version + 1)}
    assert covered <= served
    return {
        (key, version)
        for key, version in served - covered
        if key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    }

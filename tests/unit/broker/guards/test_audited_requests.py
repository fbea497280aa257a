"""What requests leave in the audit log: rows with their results, deletes whose client is gone, and never a secret."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.audit.audit_log import AuditEvent, AuditLog
from lowtide.broker.guards import audited_requests
from lowtide.broker.guards.audited_requests import audited
from lowtide.broker.pending import Pending
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.metadata import keys
from lowtide.metadata.records import TokenRecord
from lowtide.metadata.token_image import TokenImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lowtide.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from lowtide.protocol.messages.create_delegation_token import (
    CreatableRenewer,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from lowtide.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from lowtide.protocol.messages.erase_records import (
    ErasedPartition,
    ErasedTopic,
    EraseRecordsPartition,
    EraseRecordsRequest,
    EraseRecordsResponse,
    EraseRecordsTopic,
)
from lowtide.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.unit.broker.declared import spec_of

MARKER = "marker-5d1c"
CONTEXT: Any = SimpleNamespace(
    principal=KafkaPrincipal("User", "alice"), client_address="10.0.0.1", client_id="c", correlation_id=9, api_version=1
)
WHO = {"principal": "User:alice", "host": "10.0.0.1", "client_id": "c", "correlation_id": 9}


class World:
    """A broker with one partition, `t-0`, and an audit log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.log = SimpleNamespace(log_start_offset=3)
        log = SimpleNamespace(info=lambda event, **fields: self.lines.append({"event": event, **fields}))
        replicas = SimpleNamespace(find=self.find)
        image = SimpleNamespace(topics={"t": SimpleNamespace(topic_id=b"1" * 16)}, tokens={})
        self.broker: Any = SimpleNamespace(
            audit=AuditLog(log, frozenset(AuditEvent), lambda: 0),
            replicas=replicas,
            metadata=SimpleNamespace(image=image),
        )

    def find(self, topic: str, partition: int) -> Any:
        return SimpleNamespace(log=self.log) if (topic, partition) == ("t", 0) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def ask(self, key: ApiKey, request: Any, answer: Any) -> list[dict[str, Any]]:
        """The lines of a request that is answered so."""

        async def handle(_request: Any, _context: Any) -> Any:
            return answer

        spec = audited(spec_of(key, handle_later=handle), self.broker)
        assert spec.handle_later is not None
        assert asyncio.run(spec.handle_later(request, CONTEXT)) is answer
        assert all({name: line.pop(name) for name in WHO} == WHO for line in self.lines)
        assert MARKER not in repr(self.lines)
        return self.lines


def delete(*rows: tuple[str, int]) -> DeleteRecordsRequest:
    topics = [
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        for name, offset in rows
    ]
    return DeleteRecordsRequest(topics=topics, timeout_ms=1)


def deleted(*rows: tuple[str, int, int]) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(
            name=name, partitions=[DeleteRecordsPartitionResult(partition_index=0, low_watermark=low, error_code=code)]
        )
        for name, low, code in rows
    ]
    return DeleteRecordsResponse(topics=topics)


def test_a_delete_has_what_was_there_before_and_after() -> None:
    world, pending = World(), Pending[Any]()
    spec = audited(spec_of(ApiKey.DELETE_RECORDS, handle=lambda _request, _context: pending), world.broker)
    assert spec.handle is not None
    watched = spec.handle(delete(("t", 7), ("none", 1)), CONTEXT)
    assert world.lines == []
    world.log.log_start_offset = 7
    answer = deleted(("t", 7, 0), ("none", -1, 3))
    pending.complete(answer)
    assert watched.response is answer
    first, second = world.lines
    assert {
        name: first[name]
        for name in ("requested_offset", "old_log_start_offset", "log_start_offset", "low_watermark", "result")
    } == {"requested_offset": 7, "old_log_start_offset": 3, "log_start_offset": 7, "low_watermark": 7, "result": "NONE"}
    assert (second["topic_id"], second["old_log_start_offset"], second["result"]) == (
        None,
        None,
        "UNKNOWN_TOPIC_OR_PARTITION",
    )


def test_a_delete_whose_client_is_gone_is_a_line_too() -> None:
    world, pending, gone = World(), Pending[Any](), []
    pending.on_abandoned = lambda: gone.append(1)
    spec = audited(spec_of(ApiKey.DELETE_RECORDS, handle=lambda _request, _context: pending), world.broker)
    assert spec.handle is not None
    spec.handle(delete(("t", 7)), CONTEXT).abandon()
    assert gone == [1]
    assert [(line["requested_offset"], line["result"]) for line in world.lines] == [(7, "unknown")]


def test_deletes_that_change_nothing_are_bounded() -> None:
    world = World()
    spec = audited(spec_of(ApiKey.DELETE_RECORDS, handle=lambda _request, _context: deleted(("t", 3, 0))), world.broker)
    assert spec.handle is not None
    for _ in range(100):
        spec.handle(delete(("t", 1)), CONTEXT)
    assert len(world.lines) == 10


def test_erased_records() -> None:
    rows = [
        ErasedPartition(partition_index=0, log_start_offset=7, error_code=0),
        ErasedPartition(partition_index=1, error_code=6),
    ]
    asked = [EraseRecordsPartition(partition_index=number, offset=5) for number in range(2)]
    lines = World().ask(
        ApiKey.ERASE_RECORDS,
        EraseRecordsRequest(topics=[EraseRecordsTopic(name="t", partitions=asked)], timeout_ms=1),
        EraseRecordsResponse(error_code=0, topics=[ErasedTopic(name="t", partitions=rows)]),
    )
    of_both = {"event": "records erased", "topic": "t", "topic_id": "MTExMTExMTExMTExMTExMQ", "requested_offset": 5}
    assert lines == [
        {**of_both, "partition": 0, "log_start_offset": 7, "result": "NONE"},
        {**of_both, "partition": 1, "log_start_offset": -1, "result": "NOT_LEADER_OR_FOLLOWER"},
    ]


def test_topics() -> None:
    rows = [
        DeletableTopicResult(name="t", topic_id=b"1" * 16, error_code=0),
        DeletableTopicResult(name="u", error_code=29),
    ]
    lines = World().ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(timeout_ms=1), DeleteTopicsResponse(responses=rows))
    assert lines == [
        {"event": "topic deleted", "topic": "t", "topic_id": "MTExMTExMTExMTExMTExMQ", "result": "NONE"},
        {"event": "topic deleted", "topic": "u", "topic_id": None, "result": "TOPIC_AUTHORIZATION_FAILED"},
    ]


def test_rules() -> None:
    values: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "principal": "User:bob",
        "host": "*",
        "operation": 3,
    }
    wanted = AclCreation(**values, permission_type=3)
    lines = World().ask(
        ApiKey.CREATE_ACLS,
        CreateAclsRequest(creations=[wanted]),
        CreateAclsResponse(results=[AclCreationResult(error_code=0)]),
    )
    shown = {
        "resource_type": "TOPIC",
        "resource": "t",
        "pattern_type": "LITERAL",
        "principal": "User:bob",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    assert lines == [{"event": "acl created", "acl": shown, "result": "NONE"}]
    removed = DeleteAclsMatchingAcl(error_code=0, **values, permission_type=3)
    results = [DeleteAclsFilterResult(error_code=0, matching_acls=[removed]), DeleteAclsFilterResult(error_code=42)]
    lines = World().ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[]), DeleteAclsResponse(filter_results=results))
    assert [(line["acl"], line["result"]) for line in lines] == [(shown, "NONE"), (None, "INVALID_REQUEST")]


def test_users_without_salt_and_salted_password() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="bob", mechanism=2)],
        upsertions=[
            ScramCredentialUpsertion(
                name="carol", mechanism=1, iterations=4096, salt=MARKER.encode(), salted_password=MARKER.encode()
            )
        ],
    )
    results = [
        AlterUserScramCredentialsResult(user="bob", error_code=91, error_message=None),
        AlterUserScramCredentialsResult(user="carol", error_code=0, error_message=None),
    ]
    answer = AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)
    assert World().ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, answer) == [
        {
            "event": "user changed",
            "user": "bob",
            "mechanism": "SCRAM-SHA-512",
            "result": "RESOURCE_NOT_FOUND",
            "change": "delete",
        },
        {
            "event": "user changed",
            "user": "carol",
            "mechanism": "SCRAM-SHA-256",
            "result": "NONE",
            "change": "set",
            "iterations": 4096,
        },
    ]


def test_tokens_by_their_ids_and_without_their_hmacs() -> None:
    """Requests name a token by its HMAC; the line has what it was before."""
    renewers = [CreatableRenewer(principal_type="User", principal_name="bob")]
    created = CreateDelegationTokenResponse(
        error_code=0, principal_type="User", principal_name="carol", token_id="t1", hmac=MARKER.encode()
    )
    request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
    assert World().ask(ApiKey.CREATE_DELEGATION_TOKEN, request, created) == [
        {"event": "token created", "token": "t1", "owner": "User:carol", "renewers": ["User:bob"], "result": "NONE"}
    ]
    world, key = World(), keys.token(MARKER.encode())
    world.broker.metadata.image.tokens[key] = TokenImage(
        TokenRecord("t1", "User:carol", "User:alice", (), 0, 1, 2, {}), 1
    )
    renewal = RenewDelegationTokenRequest(hmac=MARKER.encode(), renew_period_ms=-1)
    assert world.ask(
        ApiKey.RENEW_DELEGATION_TOKEN, renewal, RenewDelegationTokenResponse(error_code=0, expiry_timestamp_ms=7)
    ) == [{"event": "token renewed", "token": "t1", "owner": "User:carol", "expires_ms": 7, "result": "NONE"}]
    ending = ExpireDelegationTokenRequest(hmac=MARKER.encode(), expiry_time_period_ms=-1)
    assert World().ask(ApiKey.EXPIRE_DELEGATION_TOKEN, ending, ExpireDelegationTokenResponse(error_code=62)) == [
        {"event": "token ended", "token": None, "owner": None, "expires_ms": -1, "result": "DELEGATION_TOKEN_NOT_FOUND"}
    ]


def test_quotas() -> None:
    entity = [AlteredQuotaEntity(entity_type="user", entity_name=None)]
    operations = [
        AlterClientQuotasOperation(key="producer_byte_rate", value=5.0, remove=False),
        AlterClientQuotasOperation(key="request_percentage", value=0.0, remove=True),
    ]
    entries = [AlterClientQuotasEntry(entity=entity, ops=operations)]
    answer = AlterClientQuotasResponse(
        entries=[AlterClientQuotasResult(error_code=0, error_message=None, entity=entity)]
    )
    fields = {
        "entity": {"user": None},
        "quotas": {"producer_byte_rate": 5.0, "request_percentage": None},
        "result": "NONE",
    }
    for validate_only, event in ((False, "quotas changed"), (True, "quotas changed (validate only)")):
        request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        assert World().ask(ApiKey.ALTER_CLIENT_QUOTAS, request, answer) == [{"event": event, **fields}]


@pytest.mark.parametrize(
    ("kind", "key", "value", "code", "shown"),
    [
        (4, "listener.name.sasl.plain.sasl.jaas.config", f"password={MARKER}", 0, "[hidden]"),
        (4, "unknown.key", MARKER, 0, "[hidden]"),
        (4, "max.connections", "5", 0, "5"),
        (2, "retention.ms", "5", 0, "5"),
        (2, "retention.ms", MARKER, 40, None),
    ],
)
def test_configurations_without_secrets_and_without_values_that_were_refused(
    kind: int, key: str, value: str, code: int, shown: str | None
) -> None:
    asked = AlterConfigsResource(
        resource_type=kind, resource_name="1", configs=[AlterableConfig(name=key, config_operation=0, value=value)]
    )
    row = AlterConfigsResourceResponse(error_code=code, error_message=None, resource_type=kind, resource_name="1")
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=False)
    (line,) = World().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse(responses=[row]))
    (config,) = line["configs"]
    assert (config["key"], config["operation"], config.get("value")) == (key, "SET", shown)


def test_features() -> None:
    """All of a request are changed, or none."""
    updates = [
        FeatureUpdateKey(feature="group.version", max_version_level=1),
        FeatureUpdateKey(feature="kraft.version", max_version_level=0),
    ]
    fields = [{"feature": "group.version", "level": 1}, {"feature": "kraft.version", "level": 0}]
    for validate_only, code, event, result in (
        (False, 0, "feature changed", "NONE"),
        (True, 0, "feature changed (validate only)", "NONE"),
        (False, 95, "feature changed", "INVALID_UPDATE_VERSION"),
    ):
        request = UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)
        lines = World().ask(ApiKey.UPDATE_FEATURES, request, UpdateFeaturesResponse(error_code=code))
        assert lines == [{"event": event, **each, "result": result} for each in fields]


def test_a_request_of_very_many_rows_has_a_bounded_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited_requests, "ROWS_MAX", 3)
    rows = [DeletableTopicResult(name=f"t{number}", error_code=0) for number in range(10)]
    lines = World().ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(timeout_ms=1), DeleteTopicsResponse(responses=rows))
    assert [line["event"] for line in lines] == ["topic deleted"] * 3 + ["and more"]
    assert lines[-1]["count"] == 7


def test_without_an_audit_log_handlers_are_as_they_were() -> None:
    world = World()
    world.broker.audit = AuditLog(None, frozenset({AuditEvent.DENIED}), lambda: 0)
    spec = spec_of(ApiKey.DELETE_RECORDS, handle=lambda _request, _context: None)
    assert audited(spec, world.broker) is spec

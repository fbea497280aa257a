"""Writes the audit log: a line with the result for each row of a request that changes or deletes something.

The lines are written when the answer is complete. If the client of a delete disconnects before that, the result in its
line is `unknown`, since the delete may still be carried out.

Guards: a line has the names of secrets only, and the value of a configuration only if it may be shown and was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from lowtide.broker.audit.audit_log import AuditEvent, short
from lowtide.broker.authorizer.acls import PatternType, Permission
from lowtide.broker.authorizer.resources import Operation as AclOperation
from lowtide.broker.authorizer.resources import ResourceType as AclResource
from lowtide.broker.config.described import shown_value
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.routing.routes import AuditLine, AuditLines, HandlerSpec
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.request_context import RequestContext
from lowtide.metadata import keys
from lowtide.metadata.records import TokenRecord
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from lowtide.protocol.scram import ScramMechanism
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition, topic_id_text
from lowtide.replication.config_changes import Operation

ROWS_MAX: Final = 1_000
"""The most lines of one request, or of one part of a large one. A line `and more` counts the others."""

_NAMES_SHOWN: Final = 100

UNKNOWN_RESULT: Final = "unknown"


def audited(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """Returns the handler with its audit lines; unchanged if it declares none or they are switched off."""
    audit = spec.audit
    if audit is None or audit.kind not in broker.audit.events:
        return spec
    kind, read, before = audit.kind, audit.lines, audit.before
    handle, handle_later = spec.handle, spec.handle_later

    def write(request: Any, context: RequestContext, answer: Any, earlier: Any) -> None:
        lines = iter(read(request, answer, earlier, broker))
        for event, fields, is_changed in islice(lines, ROWS_MAX):
            (broker.audit.done if is_changed else broker.audit.tried)(kind, event, context, **fields)
        more = sum(1 for _ in lines)
        if more:
            broker.audit.done(kind, "and more", context, count=more)

    if handle is not None:

        def at_once(request: Any, context: RequestContext) -> Any:
            earlier = before(request, broker)
            answer = handle(request, context)
            if isinstance(answer, Pending):
                return _watched(answer, lambda given: write(request, context, given, earlier))
            write(request, context, answer, earlier)
            return answer

        return spec.wrapped(handle=at_once)
    assert handle_later is not None, spec.key

    async def later(request: Any, context: RequestContext) -> Any:
        earlier = before(request, broker)
        answer = await handle_later(request, context)
        write(request, context, answer, earlier)
        return answer

    return spec.wrapped(handle_later=later)


def _watched(pending: Pending[Any], write: Callable[[Any], None]) -> Pending[Any]:
    """Returns the same answer. `write` gets it when it is complete, or None if the client has disconnected."""

    def noted(answer: Any) -> Any:
        write(None if answer is NO_ANSWER else answer)
        return answer

    watched = mapped(pending, noted)
    if not watched.done:
        abandon = watched.on_abandoned

        def on_gone() -> None:
            write(None)
            if abandon is not None:
                abandon()

        watched.on_abandoned = on_gone
    return watched


def _log_starts(request: Any, broker: BrokerContext) -> dict[TopicPartition, int]:
    """Returns the log start offsets of those named partitions that this broker has."""
    starts = {}
    for topic in request.topics:
        for row in topic.partitions:
            found = broker.replicas.find(topic.name, row.partition_index)
            if not isinstance(found, ErrorCode):
                starts[TopicPartition(topic.name, row.partition_index)] = found.log.log_start_offset
    return starts


def _deleted_records(
    request: Any, answer: Any, before: Mapping[TopicPartition, int], broker: BrokerContext
) -> Iterator[AuditLine]:
    wanted = {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in request.topics
        for row in topic.partitions
    }
    rows = (
        {}
        if answer is None
        else {TopicPartition(each.name, row.partition_index): row for each in answer.topics for row in each.partitions}
    )
    now, topics = _log_starts(request, broker), broker.metadata.image.topics
    for key, offset in wanted.items():
        row, known = rows.get(key), topics.get(key.topic)
        fields = {
            "topic": short(key.topic),
            "topic_id": None if known is None else topic_id_text(known.topic_id),
            "partition": key.partition,
            "requested_offset": offset,
            "old_log_start_offset": before.get(key),
            "log_start_offset": now.get(key),
            "low_watermark": None if row is None else row.low_watermark,
            "result": UNKNOWN_RESULT if row is None else _result(row.error_code),
        }
        yield "records deleted", fields, before.get(key) != now.get(key) or (row is None and key in before)


def _erased_records(request: Any, answer: Any, _before: Any, broker: BrokerContext) -> Iterator[AuditLine]:
    wanted = {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in request.topics
        for row in topic.partitions
    }
    topics = broker.metadata.image.topics
    for topic in answer.topics:
        for row in topic.partitions:
            known = topics.get(topic.name)
            fields = {
                "topic": short(topic.name),
                "topic_id": None if known is None else topic_id_text(known.topic_id),
                "partition": row.partition_index,
                "requested_offset": wanted.get(TopicPartition(topic.name, row.partition_index)),
                "log_start_offset": row.log_start_offset,
                "result": _result(row.error_code),
            }
            yield "records erased", fields, row.error_code == ErrorCode.NONE


def _found_records(request: Any, answer: Any, _before: Any, broker: BrokerContext) -> Iterator[AuditLine]:
    """Returns lines about records that were found in order to be erased.

    None has the selector, which is personal data.
    """
    topics = broker.metadata.image.topics if request.erase else {}
    for topic in answer.topics if request.erase else ():
        for row in topic.partitions:
            known = topics.get(topic.name)
            fields = {
                "topic": short(topic.name),
                "topic_id": None if known is None else topic_id_text(known.topic_id),
                "partition": row.partition_index,
                "erasure_id": request.search_id.hex(),
                "records": row.record_count,
                "erasures_end": row.erasures_end,
                "result": _result(row.error_code),
            }
            yield "records named for erasure", fields, row.erasures_end >= 0


def _changed_standing(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    """A line of a standing erasure. The digests of its keys are secret."""
    fields = {
        "erasure_id": request.erasure_id.hex(),
        "topics": [short(name) for name in request.topics[:_NAMES_SHOWN]],
        "patterns": [short(name) for name in request.patterns[:_NAMES_SHOWN]],
        "keys": len(request.digests),
        "ends_ms": answer.ends_ms,
        "result": _result(answer.error_code),
    }
    event = "standing erasure begun" if request.lasts_ms else "standing erasure ended"
    if any(request.erasure_id):  # Without an id it is only asked whether the broker knows the request.
        yield event, fields, answer.error_code == ErrorCode.NONE


def _deleted_topics(_request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    for row in answer.responses:
        fields = {"topic": short(row.name), "topic_id": _id(row.topic_id), "result": _result(row.error_code)}
        yield "topic deleted", fields, row.error_code == ErrorCode.NONE


def _created_acls(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    for asked, row in zip(request.creations, answer.results, strict=False):
        fields = {"acl": _acl(asked, asked.resource_pattern_type), "result": _result(row.error_code)}
        yield "acl created", fields, row.error_code == ErrorCode.NONE


def _deleted_acls(_request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    for row in answer.filter_results:
        if row.error_code != ErrorCode.NONE:
            yield "acl deleted", {"acl": None, "result": _result(row.error_code)}, False
        for acl in row.matching_acls:
            yield "acl deleted", {"acl": _acl(acl, acl.pattern_type), "result": _result(acl.error_code)}, True


def _changed_users(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    results = {row.user: row.error_code for row in answer.results}
    for row in (*request.deletions, *request.upsertions):
        code = results.get(row.name, ErrorCode.UNKNOWN_SERVER_ERROR)
        fields: dict[str, Any] = {
            "user": short(row.name),
            "mechanism": _mechanism(row.mechanism),
            "result": _result(code),
        }
        iterations = getattr(row, "iterations", None)
        fields |= {"change": "delete"} if iterations is None else {"change": "set", "iterations": iterations}
        yield "user changed", fields, code == ErrorCode.NONE


def _created_token(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    fields = {
        "token": answer.token_id,
        "owner": short(f"{answer.principal_type}:{answer.principal_name}"),
        "renewers": [short(f"{each.principal_type}:{each.principal_name}") for each in request.renewers[:ROWS_MAX]],
        "result": _result(answer.error_code),
    }
    yield "token created", fields, answer.error_code == ErrorCode.NONE


def _changed_token(
    request: Any, answer: Any, before: TokenRecord | None, _broker: BrokerContext
) -> Iterator[AuditLine]:
    named = (
        {"token": None, "owner": None} if before is None else {"token": before.token_id, "owner": short(before.owner)}
    )
    event = "token renewed" if isinstance(request, RenewDelegationTokenRequest) else "token ended"
    fields = named | {"expires_ms": answer.expiry_timestamp_ms, "result": _result(answer.error_code)}
    yield event, fields, answer.error_code == ErrorCode.NONE


def _token(request: Any, broker: BrokerContext) -> TokenRecord | None:
    """Returns the token whose HMAC is in a request, as it is before the change."""
    found = broker.metadata.image.tokens.get(keys.token(bytes(request.hmac)))
    return None if found is None else found.token


def _changed_quotas(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    for asked, row in zip(request.entries, answer.entries, strict=False):
        entity = {short(part.entity_type) or "": short(part.entity_name) for part in asked.entity}
        quotas = {short(each.key) or "": None if each.remove else each.value for each in asked.ops}
        fields = {"entity": entity, "quotas": quotas, "result": _result(row.error_code)}
        yield _event("quotas changed", request), fields, row.error_code == ErrorCode.NONE and not request.validate_only


def _changed_configs(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    results = {(row.resource_type, row.resource_name): row.error_code for row in answer.responses}
    for asked in request.resources:
        code = results.get((asked.resource_type, asked.resource_name), ErrorCode.UNKNOWN_SERVER_ERROR)
        is_done = code == ErrorCode.NONE
        fields = {
            "resource_type": _name_of(ConfigResourceType, asked.resource_type),
            "resource": short(asked.resource_name),
            "configs": [_config(asked.resource_type, each, is_shown=is_done) for each in asked.configs[:ROWS_MAX]],
            "result": _result(code),
        }
        yield _event("configuration changed", request), fields, is_done and not request.validate_only


def _config(kind: int, asked: Any, *, is_shown: bool) -> dict[str, str | None]:
    operation = getattr(asked, "config_operation", Operation.SET)
    shown = {"key": short(asked.name), "operation": _name_of(Operation, operation)}
    if is_shown and asked.value is not None:
        shown["value"] = (
            short(shown_value(asked.name, asked.value) if kind == ConfigResourceType.BROKER else asked.value)
            or "[hidden]"
        )
    return shown


def _changed_features(request: Any, answer: Any, _before: Any, _broker: BrokerContext) -> Iterator[AuditLine]:
    """Returns the requested levels: all are changed, or none. An unchanged level is included."""
    is_done = answer.error_code == ErrorCode.NONE
    for asked in request.feature_updates:
        fields = {
            "feature": short(asked.feature),
            "level": asked.max_version_level,
            "result": _result(answer.error_code),
        }
        yield _event("feature changed", request), fields, is_done and not request.validate_only


def _event(event: str, request: Any) -> str:
    """Returns the name of the event, which shows whether the request only validates."""
    return f"{event} (validate only)" if request.validate_only else event


def _acl(row: Any, pattern_type: int) -> dict[str, str | None]:
    return {
        "resource_type": _name_of(AclResource, row.resource_type),
        "resource": short(row.resource_name),
        "pattern_type": _name_of(PatternType, pattern_type),
        "principal": short(row.principal),
        "host": short(row.host),
        "operation": _name_of(AclOperation, row.operation),
        "permission": _name_of(Permission, row.permission_type),
    }


def _mechanism(number: int) -> str:
    return ScramMechanism(number).text if number in ScramMechanism.__members__.values() else str(number)


def _id(topic_id: TopicId) -> str | None:
    return None if topic_id == ZERO_TOPIC_ID else topic_id_text(topic_id)


def _result(code: int) -> str:
    return _name_of(ErrorCode, code)


def _name_of(kind: Any, value: int) -> str:
    return kind(value).name if value in kind.__members__.values() else str(value)


CHANGED_QUOTAS: Final = AuditLines(AuditEvent.CHANGES, _changed_quotas)
CHANGED_CONFIGS: Final = AuditLines(AuditEvent.CHANGES, _changed_configs)
CHANGED_USERS: Final = AuditLines(AuditEvent.CHANGES, _changed_users)
CREATED_ACLS: Final = AuditLines(AuditEvent.CHANGES, _created_acls)
DELETED_ACLS: Final = AuditLines(AuditEvent.CHANGES, _deleted_acls)
CREATED_TOKEN: Final = AuditLines(AuditEvent.CHANGES, _created_token)
CHANGED_TOKEN: Final = AuditLines(AuditEvent.CHANGES, _changed_token, before=_token)
CHANGED_FEATURES: Final = AuditLines(AuditEvent.CHANGES, _changed_features)
DELETED_RECORDS: Final = AuditLines(AuditEvent.DELETES, _deleted_records, before=_log_starts)
ERASED_RECORDS: Final = AuditLines(AuditEvent.DELETES, _erased_records)
CHANGED_STANDING: Final = AuditLines(AuditEvent.DELETES, _changed_standing)
FOUND_RECORDS: Final = AuditLines(AuditEvent.DELETES, _found_records)
DELETED_TOPICS: Final = AuditLines(AuditEvent.DELETES, _deleted_topics)

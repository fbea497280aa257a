"""AlterStandingErasures: v0-v0.

Behaviour: Lowtide's own, not advertised. Begins a standing erasure, replaces one with the same id, or ends it. The
response is sent when all brokers act on the change, or are named in the log after five seconds.

Errors: TOPIC_AUTHORIZATION_FAILED without DELETE on each topic, of the request and of what it replaces;
CLUSTER_AUTHORIZATION_FAILED without ALTER on the cluster for patterns, which cover topics that nobody has created yet;
INVALID_REQUEST with a sentence; UNSUPPORTED_VERSION while a broker can't erase single records; RESOURCE_NOT_FOUND for
the end of an unknown one; POLICY_VIOLATION if there are too many; those of `decide_and_commit`.

KIPs: 107.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import CHANGED_STANDING
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.erasures import TOO_OLD
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.records import StandingRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import COMMITMENT_BYTES
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.key_digest import DIGEST_BYTES, SECRET_BYTES
from lowtide.protocol.messages.alter_standing_erasures import (
    AlterStandingErasuresRequest,
    AlterStandingErasuresResponse,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.standing_changes import plan_standing, plan_standing_end
from lowtide.replication.topic_names import INTERNAL_TOPICS, check_topic_name
from lowtide.storage.erasures.record_search import KEYS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT_S: Final = 30

WHAT: Final = "standing erasures"

NAMES_MAX: Final = 100
"""The most topics of a standing erasure, and the most patterns."""

LASTS_MAX_MS: Final = 10 * 366 * 24 * 60 * 60 * 1000

_PATTERN_CHARACTERS_MAX: Final = 249
_NO_ID: Final = bytes(16)


class _Planned(msgspec.Struct, frozen=True):
    plan: ChangePlan
    ends_ms: int


def handler(broker: BrokerContext, spread: Spread) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: AlterStandingErasuresRequest, context: RequestContext) -> AlterStandingErasuresResponse:
        if bytes(request.erasure_id) == _NO_ID:
            return AlterStandingErasuresResponse(error_code=ErrorCode.NONE)
        refusal = _why_invalid(request) or _why_not_allowed(broker, request, context)
        if refusal is not None:
            return AlterStandingErasuresResponse(error_code=refusal.error_code, error_message=refusal.message)
        principal = str(context.principal)
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        outcome = await decide_and_commit(broker.metadata, lambda: _decided(broker, request, principal), deadline)
        if isinstance(outcome, Refusal):
            return AlterStandingErasuresResponse(error_code=outcome.error_code, error_message=outcome.message)
        await spread.reach_all(broker.metadata.image.revision, WHAT)
        return AlterStandingErasuresResponse(error_code=ErrorCode.NONE, ends_ms=outcome.ends_ms)

    return HandlerSpec(
        key=ApiKey.ALTER_STANDING_ERASURES, guard=CHECKS_ITSELF, handle_later=handle, audit=CHANGED_STANDING
    )


def _why_invalid(request: AlterStandingErasuresRequest) -> Refusal | None:
    sentence = None
    if request.lasts_ms:
        sentence = _wrong_time(request) or _wrong_names(request) or _wrong_digests(request)
    return None if sentence is None else Refusal(ErrorCode.INVALID_REQUEST, sentence)


def _wrong_time(request: AlterStandingErasuresRequest) -> str | None:
    if 0 < request.lasts_ms <= LASTS_MAX_MS:
        return None
    return f"lasts_ms is {request.lasts_ms}; it must be from 0 to {LASTS_MAX_MS}, which are ten years."


def _wrong_names(request: AlterStandingErasuresRequest) -> str | None:
    if not request.topics and not request.patterns:
        return "A standing erasure needs topics or patterns."
    if max(len(request.topics), len(request.patterns)) > NAMES_MAX:
        return f"A standing erasure has at most {NAMES_MAX} topics and {NAMES_MAX} patterns."
    for name in request.topics:
        if name in INTERNAL_TOPICS:
            return f"{name} is an internal topic."
        if check_topic_name(name) is not None:
            return "A name is no valid topic name."
    if any(not 0 < len(pattern) <= _PATTERN_CHARACTERS_MAX for pattern in request.patterns):
        return f"A pattern has from 1 to {_PATTERN_CHARACTERS_MAX} characters."
    return None


def _wrong_digests(request: AlterStandingErasuresRequest) -> str | None:
    if not 0 < len(request.digests) <= KEYS_MAX:
        return f"The request has {len(request.digests)} digests; it must have from 1 to {KEYS_MAX}."
    if any(len(digest) != DIGEST_BYTES for digest in request.digests) or len(request.secret) != SECRET_BYTES:
        return f"A digest has {DIGEST_BYTES} bytes, and the secret {SECRET_BYTES}."
    if len(request.commitment) != COMMITMENT_BYTES:
        return f"The commitment has {len(request.commitment)} bytes; it must have {COMMITMENT_BYTES}."
    return None


def _why_not_allowed(
    broker: BrokerContext, request: AlterStandingErasuresRequest, context: RequestContext
) -> Refusal | None:
    """Returns what the client lacks a right for: what it asks for, and what that replaces or ends."""
    topics, patterns = set(request.topics), set(request.patterns)
    known = broker.metadata.image.standing.get(bytes(request.erasure_id))
    if known is not None:
        topics, patterns = topics | set(known.record.topics), patterns | set(known.record.patterns)
    denied = topics - set(_allowed(broker, context, topics))
    if denied:
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "DELETE on each of the topics is needed.")
    if patterns and not broker.authorizer.authorize(context, Operation.ALTER, CLUSTER):
        return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Patterns need ALTER on the cluster.")
    return None


def _allowed(broker: BrokerContext, context: RequestContext, topics: set[str]) -> Iterable[str]:
    return allowed_topics(broker.authorizer, context, Operation.DELETE, topics)


def _decided(broker: BrokerContext, request: AlterStandingErasuresRequest, principal: str) -> _Planned | Refusal:
    image, now_ms, erasure_id = broker.metadata.image, broker.clock.wall_ms(), bytes(request.erasure_id)
    if not request.lasts_ms:
        if erasure_id not in image.standing:
            return Refusal(ErrorCode.RESOURCE_NOT_FOUND, "There is no standing erasure with this id.")
        return _Planned(plan_standing_end(image, erasure_id), now_ms)
    if not image.erases_records:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, TOO_OLD)
    record = StandingRecord(
        topics=tuple(dict.fromkeys(request.topics)),
        patterns=tuple(dict.fromkeys(request.patterns)),
        commitment=bytes(request.commitment),
        principal=principal,
        begun_ms=now_ms,
        ends_ms=now_ms + request.lasts_ms,
        secret=bytes(request.secret),
        digests=tuple(dict.fromkeys(map(bytes, request.digests))),
    )
    planned = plan_standing(image, erasure_id, record)
    return planned if isinstance(planned, Refusal) else _Planned(planned, record.ends_ms)

"""AlterClientQuotas: v0-v1.

Behaviour: sets and removes quotas of users, client ids and addresses. The response is sent when every broker enforces
them (`spread`). All keys of an entity are changed, or none; a refused entry does not affect the others. Removing a
quota that is not set succeeds.

Version notes: v1 is the first flexible version.

Errors: INVALID_REQUEST, POLICY_VIOLATION, NOT_CONTROLLER, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE.

KIPs: 546, 612.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit, outcome_fields
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import CHANGED_QUOTAS
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.quotas.quota_changes import QuotaChanges, plan_quota_changes
from lowtide.broker.quotas.quota_entity import described
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
)
from lowtide.replication.refusal import Refusal

WHAT: Final = "quotas"

TIMEOUT_MS: Final = 30_000
"""How long it may take: the request does not say."""

CUT: Final = Cut(levels=(("entries", "entries"),), changes=True, sequential=True)


def handler(broker: BrokerContext, spread: Spread) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
        outcome: QuotaChanges | Refusal = plan_quota_changes(broker.metadata.image, request.entries)
        if not request.validate_only:
            deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000
            outcome = await decide_and_commit(
                broker.metadata, lambda: plan_quota_changes(broker.metadata.image, request.entries), deadline
            )
            if not isinstance(outcome, Refusal) and not outcome.plan.is_empty:
                for entity, values in outcome.changed:
                    broker.log.info("quotas changed", entity=described(entity), quotas=dict(values))
                await spread.reach_all(broker.metadata.image.revision, WHAT)
        if isinstance(outcome, Refusal):
            return refused(request, context.api_version, outcome)
        return _answered(request, outcome.refusals)

    return HandlerSpec(
        key=ApiKey.ALTER_CLIENT_QUOTAS,
        guard=on_cluster(Operation.ALTER_CONFIGS, refused),
        handle_later=handle,
        cut=CUT,
        audit=CHANGED_QUOTAS,
    )


def refused(request: AlterClientQuotasRequest, _version: int, refusal: Refusal) -> AlterClientQuotasResponse:
    """Returns the answer to a request that is refused as a whole."""
    return _answered(request, [refusal] * len(request.entries))


def _answered(request: AlterClientQuotasRequest, refusals: Sequence[Refusal | None]) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResult(entity=entry.entity, **outcome_fields(refusal))
            for entry, refusal in zip(request.entries, refusals, strict=True)
        ]
    )

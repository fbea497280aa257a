"""AlterClientQuotas: v0-v1.

Behaviour: sets and removes quotas of users, client ids and addresses; answers when every broker enforces them
(`spread`). Of each entity all keys are changed or none; an entry that is refused does not hold the others up. The
removal of a quota that is not set succeeds.

Version notes: v1 is the first flexible version.

Errors: INVALID_REQUEST, POLICY_VIOLATION, NOT_CONTROLLER, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE.

KIPs: 546, 612.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.quotas.quota_changes import QuotaChanges, plan_quota_changes
from lowtide.broker.quotas.quota_entity import described
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
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
    """The handler over a broker's state."""

    async def handle(request: AlterClientQuotasRequest, _context: RequestContext) -> AlterClientQuotasResponse:
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
        refusals = [outcome] * len(request.entries) if isinstance(outcome, Refusal) else outcome.refusals
        return AlterClientQuotasResponse(
            entries=[
                AlterClientQuotasResult(
                    error_code=ErrorCode.NONE if refusal is None else refusal.error_code,
                    error_message=None if refusal is None else refusal.message,
                    entity=entry.entity,
                )
                for entry, refusal in zip(request.entries, refusals, strict=True)
            ]
        )

    return HandlerSpec(key=ApiKey.ALTER_CLIENT_QUOTAS, handle_later=handle, cut=CUT)

"""DescribeStandingErasures: v0-v0.

Behaviour: Lowtide's own, not advertised. Lists the standing erasures that have not ended, without secrets and digests.

Errors: TOPIC_AUTHORIZATION_FAILED without READ on the ledger `__lowtide_erasures`, which says the same and more.

KIPs: 107.
"""

from __future__ import annotations

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_standing_erasures import (
    DescribeStandingErasuresRequest,
    DescribeStandingErasuresResponse,
    StandingErasure,
)
from lowtide.replication.topic_names import LEDGER_TOPIC


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def handle(_request: DescribeStandingErasuresRequest, context: RequestContext) -> DescribeStandingErasuresResponse:
        if LEDGER_TOPIC not in allowed_topics(broker.authorizer, context, Operation.READ, {LEDGER_TOPIC}):
            return DescribeStandingErasuresResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        now_ms = broker.clock.wall_ms()
        rows = [
            StandingErasure(
                erasure_id=erasure_id,
                topics=list(record.topics),
                patterns=list(record.patterns),
                principal=record.principal,
                begun_ms=record.begun_ms,
                ends_ms=record.ends_ms,
                key_count=len(record.digests),
            )
            for erasure_id, record in ((key, each.record) for key, each in broker.metadata.image.standing.items())
            if record.ends_ms > now_ms
        ]
        return DescribeStandingErasuresResponse(error_code=ErrorCode.NONE, erasures=rows)

    return HandlerSpec(key=ApiKey.DESCRIBE_STANDING_ERASURES, guard=CHECKS_ITSELF, handle=handle)

"""DescribeClientQuotas: v0-v1.

Behaviour: returns the quotas that are set on the entities that the filter matches, from this broker's metadata. An
empty filter matches all entities, an empty strict one none.

Version notes: v1 is the first flexible version.

Errors: INVALID_REQUEST for a contradictory filter, UNSUPPORTED_VERSION for an unknown type of entity.

KIPs: 546, 612.
"""

from __future__ import annotations

from collections.abc import Generator

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.quotas.quota_entity import parse_entity, parse_values
from lowtide.broker.quotas.quota_filter import Filter, filter_of, matches
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotaEntity,
    DescribedQuotaValue,
)
from lowtide.replication.refusal import Refusal

ENTITIES_A_STEP = 100
"""Some two tenths of a millisecond's work."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> Answer[DescribeClientQuotasResponse]:
        wanted = filter_of(request.components)
        if isinstance(wanted, Refusal):
            return refused(request, context.api_version, wanted)
        if not wanted and request.strict:
            return DescribeClientQuotasResponse(entries=[])
        return broker.turns.answer(_steps(broker.metadata.image, wanted, strict=request.strict))

    return HandlerSpec(
        key=ApiKey.DESCRIBE_CLIENT_QUOTAS, guard=on_cluster(Operation.DESCRIBE_CONFIGS, refused), handle=handle
    )


def refused(_request: DescribeClientQuotasRequest, _version: int, refusal: Refusal) -> DescribeClientQuotasResponse:
    """Returns the answer to a request that is refused."""
    return DescribeClientQuotasResponse(**outcome_fields(refusal), entries=None)


def _steps(
    image: MetadataImage, wanted: Filter, *, strict: bool
) -> Generator[None, None, DescribeClientQuotasResponse]:
    rows = []
    for number, (text, config) in enumerate(image.client_quotas.items(), 1):
        entity = parse_entity(text)
        if matches(entity, wanted, strict=strict):
            rows.append(
                DescribeClientQuotasEntry(
                    entity=[DescribedQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[
                        DescribedQuotaValue(key=key, value=value) for key, value in parse_values(config.configs).items()
                    ],
                )
            )
        if number % ENTITIES_A_STEP == 0:
            yield
    return DescribeClientQuotasResponse(entries=rows)

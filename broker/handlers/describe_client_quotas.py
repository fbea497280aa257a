"""DescribeClientQuotas: v0-v1.

Behaviour: returns the quotas that are set on the entities that the filter matches, from this broker's metadata. An
empty filter matches all entities, an empty strict one none.

Version notes: v1 is the first flexible version.

Errors: INVALID_REQUEST for a filter that contradicts itself, UNSUPPORTED_VERSION for a type of entity that is not
known.

KIPs: 546, 612.
"""

from __future__ import annotations

from collections.abc import Generator

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending
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
    """The handler over a broker's state."""

    def handle(
        request: DescribeClientQuotasRequest, _context: RequestContext
    ) -> DescribeClientQuotasResponse | Pending[DescribeClientQuotasResponse]:
        wanted = filter_of(request.components)
        if isinstance(wanted, Refusal):
            return DescribeClientQuotasResponse(
                error_code=wanted.error_code, error_message=wanted.message, entries=None
            )
        if not wanted and request.strict:
            return DescribeClientQuotasResponse(entries=[])
        return broker.turns.answer(_steps(broker.metadata.image, wanted, strict=request.strict))

    return HandlerSpec(key=ApiKey.DESCRIBE_CLIENT_QUOTAS, guard=guards.describe_client_quotas, handle=handle)


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

"""DescribeConfigs: v1-v4.

Behaviour: returns the configuration of topics, of this broker, of all brokers (a broker with an empty name), and of
groups, which need not exist. No keys, or an empty list of them, request all; unknown keys are left out. Secrets have no
value. A broker's loggers are packages of its code, with their effective levels (KIP-412). A client metrics subscription
is described with its defaults, whether or not it exists (KIP-714). If the type of one resource is unknown, the whole
request is refused.

Version notes: v1 has sources and, if requested, synonyms (KIP-226). v3 has types and, if requested, documentation
(KIP-569).

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST.

KIPs: 133, 226, 412, 569, 714, 848.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.config.described import DescribedConfig
from lowtide.broker.config.resources import resource_of
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from lowtide.replication.refusal import Refusal

CUT: Final = Cut(levels=(("resources", "results"),))


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """Returns the handler."""

    def steps(request: DescribeConfigsRequest) -> Generator[None, None, DescribeConfigsResponse]:
        topic_defaults = administrator.describe_topic_defaults()
        results = []
        for row in request.resources:
            resource = resource_of(row.resource_type, row.resource_name)
            assert not isinstance(resource, Refusal), resource
            described = administrator.describe(resource, row.configuration_keys, topic_defaults)
            results.append(
                _refused(row, described) if isinstance(described, Refusal) else _described(row, described, request)
            )
            yield
        return DescribeConfigsResponse(results=results)

    def handle(request: DescribeConfigsRequest, _context: RequestContext) -> Answer[DescribeConfigsResponse]:
        refusals = [
            meant
            for row in request.resources
            if isinstance(meant := resource_of(row.resource_type, row.resource_name), Refusal)
        ]
        if refusals:
            return DescribeConfigsResponse(results=[_refused(row, refusals[0]) for row in request.resources])
        return administrator.broker.turns.answer(steps(request))

    return HandlerSpec(key=ApiKey.DESCRIBE_CONFIGS, guard=guards.describe_configs, handle=handle, cut=CUT)


def _described(
    row: DescribeConfigsResource, entries: Sequence[DescribedConfig], request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message="",
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        configs=[_entry(entry, request) for entry in entries],
    )


def _entry(entry: DescribedConfig, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms],
        config_type=entry.wire_type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _refused(row: DescribeConfigsResource, refusal: Refusal) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        **outcome_fields(refusal),
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        configs=[],
    )

"""Matches entities with the filter of a DescribeClientQuotas request.

Pure. Source: Kafka's `ClientQuotasImage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lowtide.broker.quotas.quota_entity import CLIENT_ID, IP, USER, QuotaEntity, normal_name
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_client_quotas import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    DescribeClientQuotasComponent,
)
from lowtide.replication.refusal import Refusal

_ANY: Final = object()

Filter = dict[str, object]
"""The name that an entity must have, by type: None for the default, `_ANY` for every name."""


def filter_of(components: Iterable[DescribeClientQuotasComponent]) -> Filter | Refusal:
    """Reads the request's filter. Refusals: INVALID_REQUEST, and UNSUPPORTED_VERSION for an unknown type."""
    wanted: Filter = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            return Refusal(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in {USER, CLIENT_ID, IP}:
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        refusal = _check(component)
        if refusal is not None:
            return refusal
        wanted[kind] = _ANY if component.match_type == MATCH_ANY else normal_name(kind, component.match)
    if IP in wanted and len(wanted) > 1:
        return Refusal(ErrorCode.INVALID_REQUEST, "An ip in a filter cannot be combined with a user or a client-id.")
    return wanted


def matches(entity: QuotaEntity, wanted: Filter, *, strict: bool) -> bool:
    """Returns whether an entity matches. With a strict filter, the entity may have no other types."""
    names = dict(entity)
    if strict and len(names) != len(wanted):
        return False
    return all(kind in names and name in (_ANY, names[kind]) for kind, name in wanted.items())


def _check(component: DescribeClientQuotasComponent) -> Refusal | None:
    kind, match = component.match_type, component.match
    known: Sequence[int] = (MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY)
    if kind not in known:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown match type {kind}")
    if (kind == MATCH_EXACT) == (match is not None):
        return None
    problem = "set the match string to null" if match is None else "also specified a match string"
    return Refusal(ErrorCode.INVALID_REQUEST, f"The request specified the match type {kind}, but {problem}.")

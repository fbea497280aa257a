"""DescribeClientQuotas (key 48): the quotas of the entities that a filter matches (KIP-546).

An entity is a user, a client id, both, or an address: pairs of type and name.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Float64, Int8, Int16, Int32, Message, String, versions

MATCH_EXACT = 0
"""`match_type`: the entity of this name."""
MATCH_DEFAULT = 1
"""`match_type`: the default of this type."""
MATCH_ANY = 2
"""`match_type`: every name of this type, and the default."""


class DescribeClientQuotasComponent(Message, kw_only=True):
    """A condition on one entity type; `match` is null unless an exact name is required."""

    entity_type: String
    match_type: Int8
    match: String | None = None


@versions("0-1", flexible="1+")
class DescribeClientQuotasRequest(ApiMessage, kw_only=True):
    """`strict` excludes entities with types that are not named."""

    components: list[DescribeClientQuotasComponent]
    strict: Bool


class DescribedQuotaEntity(Message, kw_only=True):
    """A null name is the default of the type."""

    entity_type: String
    entity_name: String | None


class DescribedQuotaValue(Message, kw_only=True):
    key: String
    value: Float64


class DescribeClientQuotasEntry(Message, kw_only=True):
    entity: list[DescribedQuotaEntity]
    values: list[DescribedQuotaValue]


@versions("0-1", flexible="1+")
class DescribeClientQuotasResponse(ApiMessage, kw_only=True):
    """`entries` is null on error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: list[DescribeClientQuotasEntry] | None

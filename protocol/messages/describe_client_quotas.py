"""DescribeClientQuotas (key 48): the quotas that are set, of the entities that a filter matches (KIP-546).

An entity is a user, a client id, both, or an address: pairs of type and name, where a null name is the default of that
type. Field by field this is Kafka's DescribeClientQuotasRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Float64, Int8, Int16, Int32, Message, String, Versions

MATCH_EXACT = 0
"""`match_type`: the entity of this name."""
MATCH_DEFAULT = 1
"""`match_type`: the default of this type."""
MATCH_ANY = 2
"""`match_type`: every name of this type, and the default."""


class DescribeClientQuotasComponent(Message, kw_only=True):
    """What an entity's name of one type must be; `match` is null unless an exact name is meant."""

    entity_type: String
    match_type: Int8
    match: String | None = None


class DescribeClientQuotasRequest(ApiMessage, kw_only=True):
    """The filter. `strict`: an entity with a type that is not named does not match."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("1+")

    components: list[DescribeClientQuotasComponent]
    strict: Bool


class DescribedQuotaEntity(Message, kw_only=True):
    """One type and name of an entity; a null name is the default."""

    entity_type: String
    entity_name: String | None


class DescribedQuotaValue(Message, kw_only=True):
    """One quota: its key and its limit."""

    key: String
    value: Float64


class DescribeClientQuotasEntry(Message, kw_only=True):
    """What is set on one entity."""

    entity: list[DescribedQuotaEntity]
    values: list[DescribedQuotaValue]


class DescribeClientQuotasResponse(ApiMessage, kw_only=True):
    """The answer; the entries are null in one with an error."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("1+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: list[DescribeClientQuotasEntry] | None

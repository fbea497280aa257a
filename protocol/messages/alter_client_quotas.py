"""AlterClientQuotas (key 49): sets and removes quotas (KIP-546).

Either all keys of an entity change, or none.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Float64, Int16, Int32, Message, String, versions


class AlteredQuotaEntity(Message, kw_only=True):
    """A null name is the default of the type."""

    entity_type: String
    entity_name: String | None


class AlterClientQuotasOperation(Message, kw_only=True):
    """Sets the limit of one key, or removes it."""

    key: String
    value: Float64
    remove: Bool


class AlterClientQuotasEntry(Message, kw_only=True):
    entity: list[AlteredQuotaEntity]
    ops: list[AlterClientQuotasOperation]


@versions("0-1", flexible="1+")
class AlterClientQuotasRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the changes without making them."""

    entries: list[AlterClientQuotasEntry]
    validate_only: Bool


class AlterClientQuotasResult(Message, kw_only=True):
    error_code: Int16
    error_message: String | None
    entity: list[AlteredQuotaEntity]


@versions("0-1", flexible="1+")
class AlterClientQuotasResponse(ApiMessage, kw_only=True):
    """One row per entity, in the order of the request."""

    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResult]

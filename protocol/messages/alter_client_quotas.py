"""AlterClientQuotas (key 49): sets and removes quotas (KIP-546).

Of each entity all keys are changed or none. Field by field this is Kafka's AlterClientQuotasRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Float64, Int16, Int32, Message, String, Versions


class AlteredQuotaEntity(Message, kw_only=True):
    """One type and name of an entity; a null name is the default of that type."""

    entity_type: String
    entity_name: String | None


class AlterClientQuotasOperation(Message, kw_only=True):
    """One key: its new limit, or that it is removed."""

    key: String
    value: Float64
    remove: Bool


class AlterClientQuotasEntry(Message, kw_only=True):
    """The changes of one entity."""

    entity: list[AlteredQuotaEntity]
    ops: list[AlterClientQuotasOperation]


class AlterClientQuotasRequest(ApiMessage, kw_only=True):
    """The changes; `validate_only` checks them and changes nothing."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("1+")

    entries: list[AlterClientQuotasEntry]
    validate_only: Bool


class AlterClientQuotasResult(Message, kw_only=True):
    """What became of the changes of one entity."""

    error_code: Int16
    error_message: String | None
    entity: list[AlteredQuotaEntity]


class AlterClientQuotasResponse(ApiMessage, kw_only=True):
    """The answer: a row for each entity, in the order of the request."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("1+")

    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResult]

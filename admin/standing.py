"""Standing erasures: while one stands, brokers erase records with its keys again when they return. docs/erasure.md."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminCall, AdminClientBase, failure
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.key_digest import SECRET_BYTES, key_digest
from lowtide.protocol.messages.alter_standing_erasures import AlterStandingErasuresRequest
from lowtide.protocol.messages.describe_standing_erasures import DescribeStandingErasuresRequest

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingTerms:
    """How long an erasure stands, and where. Topics that are created later are covered too."""

    lasts_ms: int
    topics: Collection[str] = ()
    patterns: Collection[str] = ()
    """Patterns of topic names, with the wildcards `*`, `?` and `[…]`. They need ALTER on the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingErasureDescription:
    """A standing erasure. Times are milliseconds since 1970."""

    erasure_id: UUID
    topics: tuple[str, ...]
    patterns: tuple[str, ...] = field(default=())
    principal: str
    """Who asked for it last."""
    begun_ms: int
    ends_ms: int
    key_count: int


async def begin_standing(
    call: AdminCall, erasure_id: UUID, keys: Collection[bytes], commitment: bytes, terms: StandingTerms
) -> int:
    """Begins a standing erasure, or replaces the one with this id. Returns when it ends. Errors: AdminError."""
    secret = call.cluster.ports.random.randbytes(SECRET_BYTES)
    request = AlterStandingErasuresRequest(
        erasure_id=erasure_id.bytes,
        lasts_ms=terms.lasts_ms,
        topics=sorted(terms.topics),
        patterns=sorted(terms.patterns),
        commitment=commitment,
        secret=secret,
        digests=[key_digest(secret, key) for key in sorted(keys)],
    )
    ends_ms: int = (await _single(call, request)).ends_ms
    return ends_ms


async def end_standing_erasure(client: AdminClientBase, erasure_id: UUID, *, timeout: float | None = None) -> None:
    """Ends a standing erasure before its time. What it has erased stays erased.

    Needs DELETE on its topics, and ALTER on the cluster if it has patterns. Errors: BrokerAnsweredError, such as
    RESOURCE_NOT_FOUND if there is none with this id; ValueError for the id of zeros only, which no erasure has.
    """
    if not erasure_id.int:
        raise ValueError("no erasure has the id of zeros only")
    await _single(client.call(timeout), AlterStandingErasuresRequest(erasure_id=erasure_id.bytes, lasts_ms=0))


async def describe_standing_erasures(
    client: AdminClientBase, *, timeout: float | None = None
) -> list[StandingErasureDescription]:
    """Returns the standing erasures of the cluster. Needs READ on `__lowtide_erasures`."""
    answer = await _single(client.call(timeout), DescribeStandingErasuresRequest())
    return [
        StandingErasureDescription(
            erasure_id=UUID(bytes=bytes(each.erasure_id)),
            topics=tuple(each.topics),
            patterns=tuple(each.patterns),
            principal=each.principal,
            begun_ms=each.begun_ms,
            ends_ms=each.ends_ms,
            key_count=each.key_count,
        )
        for each in answer.erasures
    ]


async def _single(call: AdminCall, request: ApiMessage) -> Any:
    """Returns the answer of any broker. Asks again while the error is temporary. Errors: AdminError."""

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[Any]]:
        response = await ask_lowtide(call, broker_id, request)
        if response.error_code:
            return {each: failure(each, response.error_code, response.error_message) for each in asked}
        return dict.fromkeys(asked, Done(response))

    return await call.single("the standing erasure", call.to_broker(), send)

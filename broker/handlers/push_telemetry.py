"""PushTelemetry: v0-v0.

Behaviour: stores a client's metrics for `/metrics`, in place of its previous ones. The worker decompresses them, to at
most `DECOMPRESSED_MAX` bytes, and they are parsed in turn with other work. Sums and gauges are kept; other types are
skipped. A client's last push (`terminating`) need not wait for its interval. Metrics are dropped after three intervals
without a push.

Errors: INVALID_REQUEST without an instance id and after the last push, THROTTLING_QUOTA_EXCEEDED before its time and if
too many pushes are in progress, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE above
`telemetry.max.bytes`, INVALID_RECORD for invalid metrics.

KIPs: 714.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any, Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.handlers.get_telemetry_subscriptions import telemetry_max_bytes
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.broker.telemetry.client_facts import facts_of
from lowtide.broker.telemetry.client_instances import ClientInstances, Push
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compression import Compression, decompress
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

DECOMPRESSED_MAX: Final = 4 << 20
"""The maximum size of a decompressed push: four times the default for a compressed one."""

UNDER_WAY_MAX: Final = 16
UNDER_WAY_SHARE: Final = 8
"""The number of pushes that are read at a time, and of those from one client."""

_NO_ID = bytes(16)


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    clients = broker.clients
    places = WaitingPlaces(UNDER_WAY_MAX, UNDER_WAY_SHARE)

    async def handle(request: PushTelemetryRequest, context: RequestContext) -> PushTelemetryResponse:
        if request.client_instance_id == _NO_ID:
            return _answer(ErrorCode.INVALID_REQUEST)
        with places.taken_by(context.connection) as has_place:
            return _answer(await take(request, context) if has_place else ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    async def take(request: PushTelemetryRequest, context: RequestContext) -> ErrorCode:
        clients.follow(broker.metadata.image.client_metrics)
        push = Push(
            request.subscription_id,
            request.compression_type,
            len(request.metrics),
            request.terminating,
            telemetry_max_bytes(broker),
        )
        facts = facts_of(request.client_instance_id, context)
        client = clients.begin_push(request.client_instance_id, facts, push, broker.clock.monotonic_ms())
        if isinstance(client, ErrorCode):
            return client
        if not request.metrics:
            return ErrorCode.NONE
        try:
            content = await _decompressed(broker, Compression(request.compression_type), bytes(request.metrics))
            await broker.turns.walk(_kept(clients, client, content))
        except ProtocolError:
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    return HandlerSpec(key=ApiKey.PUSH_TELEMETRY, guard=FOR_EVERYONE, handle_later=handle)


def _kept(clients: ClientInstances, client: Any, content: bytes) -> Generator[None, None, None]:
    from lowtide.broker.telemetry.otlp import read_metrics  # noqa: PLC0415 - most brokers are never pushed anything

    points = yield from read_metrics(content)
    clients.take(client, points)


async def _decompressed(broker: BrokerContext, codec: Compression, content: bytes) -> bytes:
    """Returns the decompressed metrics of a push. Errors: ProtocolError."""
    if codec is Compression.NONE:
        return content
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_done(outcome: Any) -> None:
        if done.done():
            return
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    work = partial(decompress, codec, content, max_bytes=DECOMPRESSED_MAX)
    broker.batch_lane.begin(DECOMPRESSED_MAX).submit(lambda _room: bytes(work()), on_done)
    return await done


def _answer(error: ErrorCode) -> PushTelemetryResponse:
    return PushTelemetryResponse(throttle_time_ms=0, error_code=error)

"""DescribeHealth: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns the delays of this broker's event loop since its start, the number of
connections and waiting requests, and for each log directory the bytes of its logs, of deleted files that are not
removed yet, and of its volume. The bytes are added up in turn with other work.

Errors: CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster; of a directory KAFKA_STORAGE_ERROR.

KIPs: 112.
"""

from __future__ import annotations

from collections.abc import Generator

from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.observation.health import Vitals, lag_histogram, space_of
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_health import (
    DescribeHealthRequest,
    DescribeHealthResponse,
    LogDirectoryHealth,
    UnfreedBytes,
)
from lowtide.storage.errors import StorageError


def handler(broker: BrokerContext, vitals: Vitals) -> HandlerSpec:
    """Returns the handler."""
    replicas = broker.replicas
    directories = replicas.log_manager.directories

    def directory(path: str) -> Generator[None, None, LogDirectoryHealth]:
        try:
            usage = directories.usage(path)
        except StorageError:
            return LogDirectoryHealth(path=directories.absolute_path(path), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        space = yield from space_of(directories, path, usage)
        return LogDirectoryHealth(
            path=usage.absolute_path,
            error_code=ErrorCode.NONE,
            live_bytes=space.live_bytes,
            deleted_bytes=space.deleted.total(),
            unfreed=[
                UnfreedBytes(waits_for=each.value, size_bytes=size_bytes)
                for each, size_bytes in space.deleted.most_common()
            ],
            total_bytes=usage.total_bytes,
            usable_bytes=usage.usable_bytes,
        )

    def steps() -> Generator[None, None, DescribeHealthResponse]:
        rows: list[LogDirectoryHealth] = []
        for path in directories.paths:
            row = yield from directory(path)
            rows.append(row)
        lag, waiting = vitals.loop_lag(), replicas.waiting
        return DescribeHealthResponse(
            error_code=ErrorCode.NONE,
            described_at_ms=broker.clock.wall_ms(),
            up_ms=broker.clock.monotonic_ms() - vitals.began_ms,
            connections=vitals.connections(),
            waiting_deletes=len(waiting.log_starts) + len(waiting.deletes),
            waiting_produces=len(waiting.commits) + len(waiting.flushes),
            lag=lag_histogram(lag.lag),
            held=lag_histogram(lag.held),
            log_dirs=rows,
        )

    def handle(_request: DescribeHealthRequest, context: RequestContext) -> Answer[DescribeHealthResponse]:
        if not broker.authorizer.authorize(context, Operation.DESCRIBE, CLUSTER):
            return DescribeHealthResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return broker.turns.answer(steps())

    return HandlerSpec(key=ApiKey.DESCRIBE_HEALTH, guard=CHECKS_ITSELF, handle=handle)

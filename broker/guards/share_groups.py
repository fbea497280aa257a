"""Guards of what is asked about share groups, and about their states, which only brokers ask. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import Asker, Guard, Verdict
from lowtide.protocol.errors import ErrorCode


def for_brokers(refused: Callable[[Any, ErrorCode], Any]) -> Guard:
    """CLUSTER_ACTION on the cluster; `refused` makes the answer to a request that is refused."""

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may_cluster(Operation.CLUSTER_ACTION):
            return Verdict(request)
        return Verdict(answer=refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    return guard

"""Fetches of clients that may not read everything: READ on each topic.

What may not be read stays in a fetch session, and is refused each time, as in Kafka; so it is read as soon as it may
be. Source: Kafka's `KafkaApis.handleFetchRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.endpoints import MadeOnce, endpoints_for
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader
from lowtide.broker.partitions.fetch.fetch_targets import FetchRules, FetchTarget
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import NodeEndpoint
from lowtide.protocol.types import BrokerEpoch
from lowtide.replication.partition import Partition


class GuardedFetchReader(FetchReader):
    """Reads for one client what it may read."""

    __slots__ = ("_may_read",)

    def __init__(self, may_read: Callable[[str], bool], *parts: Any) -> None:
        """`parts` as those of `FetchReader`."""
        super().__init__(*parts)
        self._may_read = may_read

    def find(self, target: FetchTarget, rules: FetchRules) -> Partition | ErrorCode:
        """Finds a partition. An unknown topic id is an error; an unknown name is only reported to clients with READ."""
        found = super().find(target, rules)
        if rules.is_follower or (found is ErrorCode.UNKNOWN_TOPIC_ID) or self._may_read(target.topic):
            return found
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED


class FetchReaders:
    """Who reads for whom."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self.of_listener = MadeOnce(lambda listener_name: FetchReader(*self._parts(listener_name)))

    def for_client(self, context: RequestContext) -> FetchReader:
        """Returns a reader that also checks what this client may read."""

        def may_read(name: str) -> bool:
            return self._broker.authorizer.authorize(context, Operation.READ, topic(name))

        return GuardedFetchReader(may_read, *self._parts(context.connection.listener_name))

    def may_read(self, client: RequestContext, name: str) -> bool:
        """Returns whether a client may read a topic. It audits no refusal: the usual path asks again and does."""
        return self._broker.authorizer.authorize(client, Operation.READ, topic(name), Audit.NOTHING)

    def _parts(self, listener_name: str) -> tuple[Any, ...]:
        metadata = self._broker.metadata
        endpoints = partial(_node_endpoints, metadata, listener_name)
        return self._broker.replicas, endpoints, partial(_serving_epoch, metadata), self._broker.clock.monotonic_ms


def _serving_epoch(metadata: MetadataSession) -> BrokerEpoch:
    """Returns the epoch in which followers here may answer consumers (rule DR7); 0 once this broker stops.

    Deletes do not wait for the replicas of a stopping broker (rule DR3).
    """
    return 0 if metadata.reports.stops else metadata.broker_epoch


def _node_endpoints(metadata: MetadataSession, listener_name: str) -> list[NodeEndpoint]:
    """Returns the addresses of brokers for clients of a listener (KIP-951)."""
    image = metadata.image
    return [
        NodeEndpoint(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack)
        for broker_id, endpoint in endpoints_for(image, listener_name).items()
    ]

"""DeleteRecords: v0-v3.

Behaviour: raises the log start offset of each partition. Checks in this order that the partition exists, its topic
isn't internal, this broker leads it, its policy allows deletes, and the offset is in range; -1 stands for the high
watermark. An accepted delete is written to the log-start journal. When it is durable it becomes visible, is checked
again and is answered. At or below the log start it succeeds and changes nothing. If a partition is listed twice, the
last entry wins.

Version notes: v2 is flexible. v3 adds LeaderOnly and LeaderLogStartOffset (KIP-1343). No Apache release has it yet;
a lower maximum version switches it off.

The room of the act is `broker/partitions/deletes`.

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION,
OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; REQUEST_TIMED_OUT, with the low watermark of that moment.

KIPs: 107, 1343.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import Final

from lowtide.broker.authorizer.authorizer import Authorizer, allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import DELETED_RECORDS
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.deletes.delayed_delete import DeleteRecordsHandler
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey

BOUNDS: Final = Bounds(undivided_max=1_024)
"""A partition costs some ten microseconds, and again when its delete is durable. One write deletes a thousand."""

CUT: Final = Cut(
    levels=(("topics", "topics"), ("partitions", "partitions")), names=("name", "partition_index"), changes=True
)


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    authorizer = broker.authorizer
    allowed = None if authorizer.allows_all else partial(_allowed_to_delete, authorizer)
    return HandlerSpec(
        key=ApiKey.DELETE_RECORDS,
        guard=CHECKS_ITSELF,
        handle=DeleteRecordsHandler(broker.replicas, broker.clock, broker.recent_deletes, allowed).handle,
        bounds=BOUNDS,
        cut=CUT,
        audit=DELETED_RECORDS,
    )


def _allowed_to_delete(authorizer: Authorizer, context: RequestContext, topics: set[str]) -> Container[str]:
    return allowed_topics(authorizer, context, Operation.DELETE, topics)

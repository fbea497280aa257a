"""Fetch: v4-v18.

Behaviour: reads each partition from the offset asked for up to the high watermark (or the last stable offset), in the
order of the request, within the byte limits; the first batch is whole whatever the limits, the last one may be cut.
Waits up to MaxWaitMs for MinBytes; an unknown partition does not end the wait of the others, an error found by the read
does. Records are sent from the files as they are. A batch that straddles the log start offset is sent whole; clients
drop what lies before the offset they asked for.

Version notes: v7 incremental sessions (KIP-227). v9 leader epoch of the client (KIP-320). v12 diverging epochs
(KIP-595). v13 topic ids (KIP-516). v15 has a follower's registration (KIP-903). v16 tells where the leader is
(KIP-951).

Followers read up to the log end, and wait for it. Once the cluster reports log starts (KIP-107), one that tells no
registration or no leader epoch is refused. Their fetch is answered at once while there is a log start to tell them, and
waits only shortly while it lacks a partition that is led here: a follower may not know yet whom to ask (rule DR5). With
a replica selector that knows racks a consumer is sent to an in-sync replica in its own (KIP-392).

The room of the act is `broker/partitions/fetch`; begin with `fetch_handler`.

Errors: TOPIC_AUTHORIZATION_FAILED, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR; for the whole request the
session errors, and INVALID_REQUEST for negative limits and unknown isolation levels.

KIPs: 74, 107, 227, 320, 392, 516, 595, 951.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.config.keys_cluster import RACK_AWARE_SELECTOR
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.fetching import FetchReaders
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.fetch.fetch_handler import FetchHandler
from lowtide.broker.partitions.fetch.usual_fetch import UsualFetch
from lowtide.broker.quotas.metered_handlers import fetched_bytes
from lowtide.protocol.api_keys import ApiKey


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    readers, authorizer = FetchReaders(broker), broker.authorizer
    nothing_is_forbidden = authorizer.allows_all
    parts: dict[str, Any] = {
        "replicas": broker.replicas,
        "sessions": broker.sessions,
        "clock": broker.clock,
        "maximum_bytes": broker.config.fetch_max_bytes,
        "selects_replicas": broker.config.values["replica.selector.class"] == RACK_AWARE_SELECTOR,
    }
    usual = UsualFetch(may_read=None if nothing_is_forbidden else readers.may_read, **parts)

    fetch = FetchHandler(
        may_follow=lambda context: (
            nothing_is_forbidden or authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER)
        ),
        of_listener=readers.of_listener,
        for_client=None if nothing_is_forbidden else readers.for_client,
        # If allowed reads are audited, the defining form asks once for each topic.
        usual=None if authorizer.audits_allowed else usual,
        **parts,
    )
    return HandlerSpec(
        key=ApiKey.FETCH,
        guard=CHECKS_ITSELF,
        handle=fetch.handle,
        counts_errors=True,
        answer_bytes=fetched_bytes,
    )

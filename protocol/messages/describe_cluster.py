"""DescribeCluster (key 60): the cluster's id, its brokers and its controller, without topics (KIP-700).

From version 1 the client chooses between brokers and controllers (KIP-919), from version 2 it can include fenced
brokers (KIP-1073).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Versions, versions

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The client did not request authorized operations (KIP-430)."""

ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2
"""The endpoint types of a request."""


@versions("0-2", flexible="0+")
class DescribeClusterRequest(ApiMessage, kw_only=True):
    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, Versions("1+")] = ENDPOINT_BROKERS
    include_fenced_brokers: Annotated[Bool, Versions("2+")] = False


class DescribeClusterBroker(Message, kw_only=True):
    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Annotated[Bool, Versions("2+")] = False


@versions("0-2", flexible="0+")
class DescribeClusterResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Versions("1+")] = ENDPOINT_BROKERS
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = msgspec.field(default_factory=list)
    cluster_authorized_operations: Int32 = OPERATIONS_NOT_ASKED

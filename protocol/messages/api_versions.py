"""ApiVersions (key 18): the APIs and versions that this broker supports.

Clients send it first. If the broker does not know its version, the response has version 0 and UNSUPPORTED_VERSION. The
response header is never flexible (KIP-511).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Tagged, Versions, versions

NO_NODE: Final = -1
"""The node id of a request that names no broker."""


@versions("0-5", flexible="3+")
class ApiVersionsRequest(ApiMessage, kw_only=True):
    """The client's name and version (KIP-511), and the broker that it wants to reach (KIP-1242)."""

    client_software_name: Annotated[String, Versions("3+")] = ""
    client_software_version: Annotated[String, Versions("3+")] = ""
    cluster_id: Annotated[String | None, Versions("5+")] = None
    """None if the client does not check which broker it reaches; then `node_id` is NO_NODE."""
    node_id: Annotated[Int32, Versions("5+")] = NO_NODE


class ApiVersion(Message, kw_only=True):
    """One API and its versions, both ends inclusive."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message, kw_only=True):
    """A feature that the broker supports (KIP-584)."""

    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message, kw_only=True):
    """A feature level that the whole cluster uses (KIP-584)."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


@versions("0-5", flexible="3+")
class ApiVersionsResponse(ApiMessage, kw_only=True):
    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Tagged(0, "3+")] = msgspec.field(default_factory=list)
    finalized_features_epoch: Annotated[Int64, Tagged(1, "3+")] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Tagged(2, "3+")] = msgspec.field(default_factory=list)
    zk_migration_ready: Annotated[Bool, Tagged(3, "3+")] = False

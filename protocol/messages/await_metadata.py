"""AwaitMetadata (key 32003): whether a broker acts on the metadata of a revision. Lowtide's own, between brokers.

A change of access rules is answered when the other brokers decide by it, a delete when brokers know that replicas of
theirs were removed. Why no request of Kafka's would do is in docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Versions


class AwaitMetadataRequest(ApiMessage, kw_only=True):
    """The revision, and for how long to wait for it."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    revision: Int64
    timeout_ms: Int32


class AwaitMetadataResponse(ApiMessage, kw_only=True):
    """No error: the broker's image is that of the revision, or a later one."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16

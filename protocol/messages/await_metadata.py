"""AwaitMetadata (key 32003): waits until a broker has applied the metadata of a revision.

Lowtide's own, between brokers. A change of ACLs is answered when the other brokers apply it, and a delete when brokers
know that their replicas were removed. docs/adr/0008-requests-of-our-own.md says why no request of Kafka's fits.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, versions


@versions("0", flexible="0+")
class AwaitMetadataRequest(ApiMessage, kw_only=True):
    revision: Int64
    timeout_ms: Int32


@versions("0", flexible="0+")
class AwaitMetadataResponse(ApiMessage, kw_only=True):
    """No error if the broker's image is of the revision, or a later one."""

    error_code: Int16

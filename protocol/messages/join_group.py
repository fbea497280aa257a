"""JoinGroup (key 11): a member of a classic group joins a rebalance, and receives its outcome.

An empty member id requests one; from version 4 the response is MEMBER_ID_REQUIRED with the id for the next request
(KIP-394). Only members interpret the metadata of protocols.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int16, Int32, Message, Nullable, String, Versions, versions


class JoinGroupRequestProtocol(Message, kw_only=True):
    """A protocol, and the member's metadata for it."""

    name: String
    metadata: Bytes


@versions("0-9", flexible="6+")
class JoinGroupRequest(ApiMessage, kw_only=True):
    """The member, its timeouts, and its protocols, the preferred one first."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Versions("1+")] = -1
    member_id: String
    group_instance_id: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    protocol_type: String
    protocols: list[JoinGroupRequestProtocol]
    reason: Annotated[String | None, Versions("8+"), Nullable("8+")] = None


class JoinGroupResponseMember(Message, kw_only=True):
    member_id: String
    group_instance_id: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    metadata: Bytes


@versions("0-9", flexible="6+")
class JoinGroupResponse(ApiMessage, kw_only=True):
    """The new generation. Only the leader receives the members, because it assigns the partitions."""

    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Versions("7+"), Nullable("7+")] = None
    protocol_name: Annotated[String | None, Nullable("7+")]
    leader: String
    skip_assignment: Annotated[Bool, Versions("9+")] = False
    member_id: String
    members: list[JoinGroupResponseMember]

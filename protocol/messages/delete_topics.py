"""DeleteTopics (key 20): deletes topics by name, from version 6 also by id.

Up to version 5 the names are in `topic_names`; from version 6 each of `topics` has a name, or a null name and an id
(KIP-516).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, Nullable, String, Uuid, Versions, versions
from lowtide.protocol.types import ZERO_TOPIC_ID


class DeleteTopicState(Message, kw_only=True):
    """A topic by name, or by id with a null name."""

    name: String | None = None
    topic_id: Uuid = ZERO_TOPIC_ID


@versions("1-6", flexible="4+")
class DeleteTopicsRequest(ApiMessage, kw_only=True):
    topics: Annotated[list[DeleteTopicState], Versions("6+")] = msgspec.field(default_factory=list)
    topic_names: Annotated[list[String], Versions("0-5")] = msgspec.field(default_factory=list)
    timeout_ms: Int32


class DeletableTopicResult(Message, kw_only=True):
    name: Annotated[String | None, Nullable("6+")]
    topic_id: Annotated[Uuid, Versions("6+")] = ZERO_TOPIC_ID
    error_code: Int16
    error_message: Annotated[String | None, Versions("5+"), Nullable("5+")] = None


@versions("1-6", flexible="4+")
class DeleteTopicsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    responses: list[DeletableTopicResult]

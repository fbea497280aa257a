"""StreamsGroupTopologyDescriptionUpdate (key 93): a member describes the topology of its application (KIP-1331)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, versions


class TopologyDescriptionNode(Message, kw_only=True):
    name: String
    node_type: Int8
    source_topics: list[String]
    sink_topic: String | None = None
    stores: list[String]
    successors: list[String]


class TopologyDescriptionSubtopology(Message, kw_only=True):
    subtopology_id: String
    nodes: list[TopologyDescriptionNode]


class TopologyDescriptionGlobalStore(Message, kw_only=True):
    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


class TopologyDescription(Message, kw_only=True):
    subtopologies: list[TopologyDescriptionSubtopology]
    global_stores: list[TopologyDescriptionGlobalStore]


@versions("0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest(ApiMessage, kw_only=True):
    group_id: String
    member_id: String
    topology_epoch: Int32
    topology_description: TopologyDescription


@versions("0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None

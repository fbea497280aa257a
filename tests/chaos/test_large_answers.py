"""Small requests with large answers: no callback of the loop builds many rows, for any API that lists or describes.

The work of a callback is counted in allocated blocks of memory, independently of the machine's load: a row has at least
one. Slices are as short as possible, one step each.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from lowtide.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.list_config_resources import ListConfigResourcesRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from lowtide.protocol.messages.list_transactions import ListTransactionsRequest
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from lowtide.testing.cluster import LowtideCluster
from tests.inside import loop_of

from .large_frames import framed

PARTITIONS, TOPICS, GROUPS, IDS = 1_500, 150, 2_000, 2_000
BLOCKS_MAX = 1_500
"""The limit of a callback: some two hundred rows with their contents."""

TIMES = 3

ALL_METADATA = MetadataRequest(topics=None)
WITH_OPERATIONS = MetadataRequest(topics=None, include_topic_authorized_operations=True)
REQUESTS: list[tuple[ApiKey, int, Any, int]] = [
    (ApiKey.METADATA, 12, ALL_METADATA, PARTITIONS),
    (ApiKey.METADATA, 9, WITH_OPERATIONS, PARTITIONS),
    (ApiKey.METADATA, 0, MetadataRequest(topics=[]), PARTITIONS),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2_000),
        PARTITIONS,
    ),
    (ApiKey.LIST_GROUPS, 5, ListGroupsRequest(states_filter=[], types_filter=[]), GROUPS),
    (ApiKey.LIST_GROUPS, 0, ListGroupsRequest(states_filter=[], types_filter=[]), GROUPS),
    (ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(state_filters=[], producer_id_filters=[]), IDS),
    (
        ApiKey.LIST_TRANSACTIONS,
        2,
        ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern=".*"),
        IDS,
    ),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None), PARTITIONS),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest(resource_types=[]), TOPICS),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None), 0),
    (ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1_000), 0),
    (
        ApiKey.OFFSET_FETCH,
        8,
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g0", topics=None)]),
        PARTITIONS,
    ),
    (ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id="g0", topics=None), PARTITIONS),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=2, resource_name=f"t{n}", configuration_keys=None)
                for n in range(100)
            ],
            include_synonyms=True,
            include_documentation=True,
        ),
        3_000,
    ),
]


class Blocks:
    """The largest number of blocks that one callback of the loop allocated."""

    def __init__(self) -> None:
        self.thread = 0
        self.most = 0
        self.callback = ""

    def run(self, original: Any, handle: Any) -> None:
        if threading.get_ident() != self.thread:
            original(handle)
            return
        before = sys.getallocatedblocks()
        original(handle)
        added = sys.getallocatedblocks() - before
        if added > self.most and "DueWork" not in repr(handle):
            self.most, self.callback = added, repr(handle)


class Client:
    def __init__(self, cluster: LowtideCluster) -> None:
        self._socket = socket.create_connection((cluster.host, cluster.port), timeout=60)

    def close(self) -> None:
        self._socket.close()

    def send(self, key: ApiKey, version: int, request: Any) -> None:
        self._socket.sendall(framed(key, version, codec_for(API[key].request, version).encode(request)))

    def size(self) -> int:
        """Returns the size of the next response, which is skipped."""
        left = size = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))[0]
        while left:
            left -= len(self._socket.recv(min(left, 1 << 16)))
        return size

    def ask(self, key: ApiKey, version: int, request: Any) -> int:
        self.send(key, version, request)
        return self.size()


def fill(client: Client) -> None:
    """Topics, groups with offsets, transactional ids."""
    topics = [("wide", PARTITIONS), *((f"t{number}", 1) for number in range(TOPICS))]
    rows = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
        for name, count in topics
    ]
    client.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=rows, timeout_ms=60_000, validate_only=False))
    for key_type in (0, 1):
        client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g", key_type=key_type))
    for number in range(GROUPS):
        partitions = range(PARTITIONS if number == 0 else 1)
        commits = [
            OffsetCommitRequestPartition(partition_index=each, committed_offset=0, committed_metadata="")
            for each in partitions
        ]
        topic = OffsetCommitRequestTopic(name="wide", partitions=commits)
        client.ask(
            ApiKey.OFFSET_COMMIT,
            6,
            OffsetCommitRequest(group_id=f"g{number}", generation_id_or_member_epoch=-1, member_id="", topics=[topic]),
        )
    for number in range(IDS):
        client.ask(
            ApiKey.INIT_PRODUCER_ID,
            1,
            InitProducerIdRequest(transactional_id=f"x{number}", transaction_timeout_ms=1_000),
        )


@pytest.fixture(scope="module")
def listing() -> Iterator[tuple[Client, Blocks]]:
    blocks = Blocks()
    patch = pytest.MonkeyPatch()
    patch.setattr("uvloop.new_event_loop", asyncio.new_event_loop)
    original = asyncio.Handle._run
    patch.setattr(asyncio.Handle, "_run", lambda handle: blocks.run(original, handle))
    config = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "lowtide.partitions.created.per.second": "100000",
    }
    try:
        with LowtideCluster(config=config, in_process=True) as cluster:
            client = Client(cluster)
            fill(client)
            blocks.thread = asyncio.run_coroutine_threadsafe(thread_id(), loop_of(cluster)).result(10)
            patch.setattr("lowtide.broker.turns.SLICE_MS", 0)
            patch.setattr("lowtide.broker.turns.OWN_SLICE_MS", 0)
            yield client, blocks
            client.close()
    finally:
        patch.undo()


async def thread_id() -> int:
    return threading.get_ident()


@pytest.mark.parametrize(
    ("key", "version", "request_message", "rows"), REQUESTS, ids=lambda value: getattr(value, "name", None)
)
def test_no_callback_builds_many_rows(
    listing: tuple[Client, Blocks], key: ApiKey, version: int, request_message: Any, rows: int
) -> None:
    client, blocks = listing
    for codec in (codec_for(API[key].request, version), codec_for(API[key].response, version)):
        for made_on_demand in ("read_request", "encode_frame"):
            getattr(codec, made_on_demand)
    # What other threads allocate during a callback, which a busy machine makes long, is not in each of several.
    for _ in range(TIMES):
        blocks.most = 0
        size = client.ask(key, version, request_message)
        assert size >= 4 * rows, "the answer has these rows"
        if blocks.most <= BLOCKS_MAX:
            break
    assert blocks.most <= BLOCKS_MAX, blocks.callback

"""Measures the cost of many groups and connections for one broker: part of `python -m bench.scale`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.runtime.process import raise_open_file_limit

from .client import Client
from .errors import BenchError
from .frames import commit_error_position, request_frame
from .groups import ask_ready, coordinator_of
from .measure import Figures, cost_of, idle_percent
from .pump import Lane, pump
from .targets import LOWTIDE, Target, TargetSpec
from .topics import create_topic

GROUPS = (1000, 10_000)
CONNECTIONS = (1000, 4000)
SETTLE_S = 2.0
SPARE_DESCRIPTORS = 100
_TOPIC = "scale-clients"


def measure_clients(scratch: Path, idle_s: float, figures: Figures) -> None:
    """Groups with a committed offset each, then connections that have asked for ApiVersions."""
    target = Target(TargetSpec(name="lowtide", command=LOWTIDE), scratch)
    try:
        target.start_fresh()
        create_topic(target, _TOPIC, 1, {})
        _commit(target, 0, 1)
        time.sleep(SETTLE_S)
        empty_mb = target.resident_mb()
        figures["idle CPU, one group, %"] = idle_percent(target, idle_s)
        known = 1
        for groups in GROUPS:
            with cost_of(target) as cost:
                _commit(target, known, groups)
            figures[f"first commit of a group, up to {groups}, CPU us"] = cost.cpu_s / (groups - known) * 1e6
            known = groups
            time.sleep(SETTLE_S)
            figures[f"{groups} groups, KB each"] = (target.resident_mb() - empty_mb) * 1000 / groups
            figures[f"idle CPU, {groups} groups, %"] = idle_percent(target, idle_s)
        _connect(target, idle_s, figures)
    finally:
        target.close()


def _commit(target: Target, first: int, end: int) -> None:
    """Commits one offset for each of these groups."""
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=_TOPIC, partitions=[row])]
    requests = [
        OffsetCommitRequest(group_id=f"group-{number}", member_id="", topics=topics) for number in range(first, end)
    ]
    if first == 0:
        address = coordinator_of(target, "group-0")
        with Client(address) as client:
            ask_ready(client, requests[0], lambda answer: answer.topics[0].partitions[0].error_code)
    lane = Lane(target.address, [request_frame(request) for request in requests])
    pump([lane], count=len(requests), depth=5, error_position=commit_error_position(_TOPIC, 1))


def _connect(target: Target, idle_s: float, figures: Figures) -> None:
    if raise_open_file_limit() < CONNECTIONS[-1] + SPARE_DESCRIPTORS:
        raise BenchError(f"this process may not open {CONNECTIONS[-1]} connections: raise the limit of open files")
    hello = request_frame(ApiVersionsRequest(), 0)
    before_mb = target.resident_mb()
    with ExitStack() as opened:
        known = 0
        for connections in CONNECTIONS:
            with cost_of(target) as cost:
                for _ in range(connections - known):
                    client = Client(target.address)
                    opened.callback(client.socket.close)
                    client.ask_bytes(hello)
            figures[f"a connection, up to {connections}, CPU us"] = cost.cpu_s / (connections - known) * 1e6
            known = connections
            time.sleep(SETTLE_S)
            figures[f"{connections} connections, KB each"] = (target.resident_mb() - before_mb) * 1000 / connections
            figures[f"idle CPU, {connections} connections, %"] = idle_percent(target, idle_s)

"""Clients of one partition that write down requests, times and answers: lines for `linearizable/`."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_records import (
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsTopic,
    RecordOffsets,
)
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import iterate_records
from lowtide.simulation.client import WireClient
from lowtide.simulation.load import (
    DELETE_RECORDS_VERSION,
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
)

FIND_RECORDS_VERSION = 1
AT_THE_END, OUT_OF_RANGE, ABSENT = -1, -2, -3
"""Results of a read without a record, or of a delete beyond the end; as in `linearizable/main.go`."""

LIMIT_MS = 10_000


class UndecidedError(Exception):
    """It may have taken effect or not."""


class RecordedLog:
    """The history of one partition: all clients write into it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lines: list[dict[str, Any]] = []
        self._records = 0
        self._acknowledged_end = 0

    def text(self) -> str:
        """One line for each operation."""
        return "".join(json.dumps(line) + "\n" for line in self.lines)

    async def step(self, number: int, client: WireClient, chance: random.Random) -> None:
        """One operation of client `number`.

        Errors: OSError when the connection is lost; the operation is in the history then.
        """
        kinds = ("produce", "delete", "erase", "start", "end", "read")
        kind = chance.choices(kinds, (5, 2, 2, 1, 1, 4))[0] if self._acknowledged_end else "produce"
        known = self._records
        argument = {
            "produce": self._records,
            "delete": chance.randint(max(0, known - 8), known),
            "erase": chance.randint(max(0, self._acknowledged_end - 10), max(0, self._acknowledged_end - 1)),
        }.get(kind, chance.randint(max(0, known - 10), known))
        self._records += kind == "produce"
        line = {
            "client": number,
            "kind": kind,
            "argument": argument,
            "called": time.monotonic_ns(),
            "returned": 0,
            "answered": False,
            "result": 0,
        }
        ask: dict[str, Callable[[WireClient, int], Awaitable[int]]] = {
            "produce": self._produce,
            "delete": self._delete,
            "erase": self._erase,
            "start": self._start,
            "end": self._end,
            "read": self._read,
        }
        try:
            line["result"] = await ask[kind](client, argument)
        except (OSError, UndecidedError) as error:
            # A connection ends when its broker does, which does nothing after that but repeat an erasure that its
            # ledger names; an error that passes may be followed by the effect.
            line["returned"] = time.monotonic_ns() if isinstance(error, OSError) and kind != "erase" else 0
            if kind in ("produce", "delete", "erase"):
                self.lines.append(line)
            if isinstance(error, OSError):
                raise
            return
        line |= {"returned": time.monotonic_ns(), "answered": True}
        self.lines.append(line)

    async def _produce(self, client: WireClient, number: int) -> int:
        batch = build_batch([(1_700_000_000_000, None, b"%d" % number, ())])
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        answer = await client.request(ProduceRequest(acks=-1, timeout_ms=LIMIT_MS, topic_data=[data]), PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        decided(row.error_code)
        self._acknowledged_end = max(self._acknowledged_end, row.base_offset + 1)
        return int(row.base_offset)

    async def _delete(self, client: WireClient, offset: int) -> int:
        topic = DeleteRecordsTopic(
            name=self.topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
        )
        answer = await client.request(DeleteRecordsRequest(topics=[topic], timeout_ms=LIMIT_MS), DELETE_RECORDS_VERSION)
        row = answer.topics[0].partitions[0]
        return int(row.low_watermark) if decided(row.error_code) else OUT_OF_RANGE

    async def _erase(self, client: WireClient, offset: int) -> int:
        """Returns the end of the erasure that names the record; without a record, of the last erasure in the log."""
        named = [RecordOffsets(first_offset=offset, last_offset=offset)]
        topic = FindRecordsTopic(name=self.topic, partitions=[FindRecordsPartition(partition_index=0, offsets=named)])
        request = FindRecordsRequest(search_id=uuid.uuid4().bytes, topics=[topic], timeout_ms=LIMIT_MS, erase=True)
        answer = await client.request(request, FIND_RECORDS_VERSION)
        decided(answer.error_code)
        row = answer.topics[0].partitions[0]
        decided(row.error_code)
        return int(row.erasures_end)

    async def _start(self, client: WireClient, _argument: int) -> int:
        return await self._bound(client, EARLIEST)

    async def _end(self, client: WireClient, _argument: int) -> int:
        return await self._bound(client, LATEST)

    async def _bound(self, client: WireClient, timestamp: int) -> int:
        topic = ListOffsetsTopic(
            name=self.topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        )
        answer = await client.request(
            ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), LIST_OFFSETS_VERSION
        )
        row = answer.topics[0].partitions[0]
        decided(row.error_code)
        return int(row.offset)

    async def _read(self, client: WireClient, offset: int) -> int:
        """Returns the number of the record at an offset; ABSENT for an erased record or the record of an erasure."""
        topic = FetchTopic(
            topic=self.topic, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)]
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[topic])
        row = (await client.request(request, FETCH_VERSION)).responses[0].partitions[0]
        if not decided(row.error_code):
            return OUT_OF_RANGE
        if not row.records:
            return AT_THE_END
        found = {record.offset: record.value for record in iterate_records(bytes(row.records), max_bytes=1 << 20)}
        value = found.get(offset) or b""
        return int(value) if value.isdigit() else ABSENT


def decided(code: int) -> bool:
    """Returns whether it succeeded; False for an offset out of range. Errors: UndecidedError for transient errors."""
    if code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
        return code == ErrorCode.NONE
    raise UndecidedError(ErrorCode(code).name)

"""An erasure of a person against scripted brokers on virtual time: rounds, progress, and keys that are forgotten."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from lowtide.admin.finding import RecordQuery
from lowtide.admin.replica_erasing import CleanedReplicas
from lowtide.console import erasing
from lowtide.console.answers import RefusedError
from lowtide.console.person import person_scope
from lowtide.console.person_erasure import FORGOTTEN_MS, ROUND_S, ErasureStage, PersonErasure, broker_rows, missing_rows
from lowtide.console.person_search import ROUND_S as SEARCH_ROUND_S
from lowtide.console.sessions import ConsolePorts, ConsoleSession
from lowtide.console.work import ERASURES_MAX, SessionWork
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from lowtide.protocol.messages.erase_records import ErasedPartition, ErasedTopic, EraseRecordsResponse
from lowtide.protocol.messages.find_records import FindRecordsResponse, FoundPartition, FoundTopic, RecordOffsets
from lowtide.protocol.messages.list_groups import ListGroupsResponse
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.tasks import TaskRegistry
from tests.unit.admin.scripted import NO_ANSWER, ScriptedBroker, ScriptedCluster, simulated

KEY = "person-4711-of-this-test"
P0 = TopicPartition("t", 0)


def found(row: Any, *, erase: bool, code: int = 0, message: str | None = None) -> FoundPartition:
    return FoundPartition(
        partition_index=row.partition_index,
        error_code=code,
        error_message=message,
        searched_from=0,
        searched_to=90,
        record_count=2,
        offsets=[] if erase else [RecordOffsets(first_offset=7, last_offset=8)],
        erasures_end=93 if erase else -1,
        log_start_offset=0 if erase else -1,
        searched_bytes=50 if code else 100,
        total_bytes=100,
    )


def finding(_broker: ScriptedBroker, request: Any) -> Any:
    topics = [
        FoundTopic(name=topic.name, partitions=[found(row, erase=request.erase) for row in topic.partitions])
        for topic in request.topics
    ]
    return FindRecordsResponse(error_code=0, topics=topics)


def searching(_broker: ScriptedBroker, request: Any) -> Any:
    """Is never finished, and makes no progress after the first half."""
    topics = [
        FoundTopic(
            name=topic.name,
            partitions=[found(row, erase=request.erase, code=ErrorCode.REQUEST_TIMED_OUT) for row in topic.partitions],
        )
        for topic in request.topics
    ]
    return FindRecordsResponse(error_code=0, topics=topics)


def erased(code: int = 0, message: str | None = None) -> Callable[[ScriptedBroker, Any], Any]:
    def answer(_broker: ScriptedBroker, request: Any) -> Any:
        topics = [
            ErasedTopic(
                name=topic.name,
                partitions=[
                    ErasedPartition(partition_index=row.partition_index, error_code=code, error_message=message)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return EraseRecordsResponse(error_code=0, topics=topics)

    return answer


def configs(_broker: ScriptedBroker, request: Any) -> Any:
    rows = [
        DescribeConfigsResult(
            error_code=0,
            error_message=None,
            resource_type=row.resource_type,
            resource_name=row.resource_name,
            configs=[],
        )
        for row in request.resources
    ]
    return DescribeConfigsResponse(results=rows)


class Console:
    """A session whose client speaks with scripted brokers."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.tasks = TaskRegistry(lambda name, error: None)
        self.ports = ConsolePorts(cluster.clock, Random(1), self.tasks)
        self.client = cluster.client()
        self.work = SessionWork(cluster.clock, Random(2), self.tasks)
        self.work.speaks_lowtide = True
        self.session = ConsoleSession(None, self.client, self.work, 0)
        cluster.add_topic("t", 1)
        cluster.partition("t").replicas = cluster.partition("t").isr = (1, 2)
        cluster.scripts |= {
            (None, ApiKey.FIND_RECORDS): finding,
            (None, ApiKey.ERASE_RECORDS): erased(),
            (None, ApiKey.DESCRIBE_CONFIGS): configs,
            (None, ApiKey.LIST_GROUPS): lambda *_: ListGroupsResponse(error_code=0, groups=[]),
        }

    async def search(self, **given: Any) -> PersonErasure:
        begun = await erasing.search_person(self.session, {"keys": [KEY], "topics": ["t"], **given}, self.ports)
        return self.work.erasures[begun["id"]]

    async def found(self) -> PersonErasure:
        job = await self.search()
        await self.until(job, ErasureStage.FOUND)
        return job

    async def rehearsed(self, job: PersonErasure) -> Any:
        return await erasing.rehearse_erasure(self.session, {"id": str(job.erasure_id)})

    async def erase(self, job: PersonErasure) -> None:
        plan = await self.rehearsed(job)
        erasing.begin_erasure(self.session, plan, {"records": plan.records})

    async def until(self, job: PersonErasure, stage: ErasureStage) -> None:
        async with asyncio.timeout(24 * 3600):
            while job.stage is not stage:
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        await self.tasks.cancel_all()
        await self.client.close()


def in_console(test: Callable[[Console], Awaitable[None]]) -> None:
    async def run(cluster: ScriptedCluster) -> None:
        console = Console(cluster)
        try:
            await test(console)
        finally:
            await console.close()

    simulated(run)


def holds_keys() -> bool:
    """Whether a selector with a key is alive anywhere."""
    gc.collect()
    return any(isinstance(each, RecordQuery) and KEY.encode() in each.keys for each in gc.get_objects())


def test_a_person_is_found_erased_and_forgotten():
    async def test(console: Console) -> None:
        job = await console.found()
        progress = {"partitions": 1, "searched": 1, "bytes": 100, "total_bytes": 100, "running": []}
        assert job.value()["search"] == progress
        value = await erasing.found_view(console.session, {"id": str(job.erasure_id)})
        assert [(row["records"], row["offsets"]) for row in value["partitions"]] == [(2, [[7, 8]])]
        await console.erase(job)
        await console.until(job, ErasureStage.CLEAN)
        erasure = job.value()["erasure"]
        assert (erasure["shown"], erasure["erased"], erasure["missing"]) == (2, 2, [])
        assert [(row["broker"], row["clean"], row["replicas"]) for row in erasure["brokers"]] == [(1, 1, 1), (2, 1, 1)]
        assert job.scope is None
        assert not holds_keys()
        assert KEY not in json.dumps(job.value())

    in_console(test)


def test_keys_are_forgotten_if_nothing_follows_the_search():
    async def test(console: Console) -> None:
        job = await console.found()
        plan = await console.rehearsed(job)
        await asyncio.sleep(FORGOTTEN_MS / 1000 + 1)
        assert job.stage is ErasureStage.FORGOTTEN
        assert not holds_keys()
        with pytest.raises(RefusedError, match="search again"):
            await console.rehearsed(job)
        with pytest.raises(RefusedError, match="search again"):
            erasing.begin_erasure(console.session, plan, {"records": plan.records})

    in_console(test)


def test_the_end_of_a_session_forgets_keys():
    async def test(console: Console) -> None:
        job = await console.found()
        await console.rehearsed(job)
        console.cluster.scripts[None, ApiKey.FIND_RECORDS] = lambda *_: NO_ANSWER
        running = await console.search()
        await asyncio.sleep(1)
        console.work.end()
        await console.client.close()
        await console.until(running, ErasureStage.ENDED)
        assert job.stage is ErasureStage.FORGOTTEN
        assert not holds_keys()

    in_console(test)


def test_a_cancelled_search_forgets_its_keys():
    async def test(console: Console) -> None:
        console.cluster.scripts[None, ApiKey.FIND_RECORDS] = lambda *_: NO_ANSWER
        job = await console.search()
        await asyncio.sleep(1)
        await erasing.cancel_search(console.session, {"id": str(job.erasure_id)}, console.ports)
        await console.until(job, ErasureStage.ENDED)
        assert (job.value()["error"], job.scope) == ("The search was cancelled.", None)
        with pytest.raises(RefusedError, match="ended already"):
            await erasing.cancel_search(console.session, {"id": str(job.erasure_id)}, console.ports)

    in_console(test)


def test_a_search_goes_on_in_rounds_and_ends_when_nothing_advances():
    async def test(console: Console) -> None:
        console.cluster.scripts[None, ApiKey.FIND_RECORDS] = searching
        job = await console.search()
        await asyncio.sleep(SEARCH_ROUND_S + 1)
        assert job.stage is ErasureStage.SEARCHING
        assert job.value()["search"]["bytes"] == 50
        assert job.value()["search"]["running"] == [{**P0._asdict(), "bytes": 50, "total_bytes": 100}]
        ids = {each.request.search_id for each in console.cluster.asked if each.key == ApiKey.FIND_RECORDS}
        assert len(ids) == 1, "the next round continues the same search"
        await console.until(job, ErasureStage.FOUND)
        value = await erasing.found_view(console.session, {"id": str(job.erasure_id)})
        assert [(row["records"], "the search goes on" in row["error"]) for row in value["partitions"]] == [(None, True)]
        with pytest.raises(RefusedError, match="no partition"):
            await console.rehearsed(job)

    in_console(test)


def test_a_broker_without_room_is_named_until_it_has_room():
    async def test(console: Console) -> None:
        no_room = "no room in /data: needs 7 bytes, has 1"
        console.cluster.scripts[2, ApiKey.ERASE_RECORDS] = erased(ErrorCode.REQUEST_TIMED_OUT, no_room)
        job = await console.found()
        await console.erase(job)
        await asyncio.sleep(2 * ROUND_S)
        assert job.stage is ErasureStage.CLEANING
        (row,) = [row for row in job.value()["erasure"]["brokers"] if row["broker"] == 2]
        assert (row["clean"], row["replicas"], row["reasons"]) == (0, 1, [f"REQUEST_TIMED_OUT ({no_room})"])
        assert job.scope is None, "to ask whether brokers are clean needs no key"
        console.cluster.scripts[2, ApiKey.ERASE_RECORDS] = erased()
        await console.until(job, ErasureStage.CLEAN)
        assert job.value()["erasure"]["missing"] == []

    in_console(test)


def test_a_partition_that_fails_is_no_success():
    async def test(console: Console) -> None:
        job = await console.found()

        def refuses(_broker: ScriptedBroker, request: Any) -> Any:
            topics = [
                FoundTopic(
                    name=topic.name,
                    partitions=[
                        found(row, erase=True, code=ErrorCode.POLICY_VIOLATION, message="held: case 7")
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
            return FindRecordsResponse(error_code=0, topics=topics)

        console.cluster.scripts[None, ApiKey.FIND_RECORDS] = refuses
        await console.erase(job)
        await console.until(job, ErasureStage.ENDED)
        value = job.value()
        assert value["error"] == "1 of 1 partitions could not be erased: search again."
        assert [(row["partition"], "held: case 7" in row["error"]) for row in value["erasure"]["failed"]] == [(0, True)]

    in_console(test)


def test_searches_of_a_session_are_bounded():
    async def test(console: Console) -> None:
        console.cluster.scripts[None, ApiKey.FIND_RECORDS] = lambda *_: NO_ANSWER
        for _ in range(erasing.SEARCHING_MAX):
            await console.search()
        assert console.work.is_busy
        with pytest.raises(RefusedError, match="searches are running"):
            await console.search()

    in_console(test)


def test_ended_erasures_are_dropped_for_new_ones():
    async def test(console: Console) -> None:
        first = await console.found()
        for _ in range(ERASURES_MAX):
            await console.found()
        assert str(first.erasure_id) not in console.work.erasures
        assert len(console.work.erasures) == ERASURES_MAX
        assert not console.work.is_busy, "a search that waits for its visitor keeps no session alive"

    in_console(test)


def test_brokers_of_kafka_get_a_sentence():
    async def test(console: Console) -> None:
        console.work.speaks_lowtide = False
        with pytest.raises(RefusedError, match="can't erase records from the middle of a log"):
            await console.search()

    in_console(test)


def test_a_partition_without_a_leader_is_named():
    async def test(console: Console) -> None:
        console.cluster.partition("t").leader = -1
        console.cluster.add_topic("u", 1)
        scope = await person_scope(console.client, {"keys": [KEY], "topics": ["t", "u"]})
        assert (scope.partitions, scope.without_leader) == ((TopicPartition("u", 0),), (P0,))
        job = await console.search(topics=["t", "u"])
        await console.until(job, ErasureStage.FOUND)
        value = await erasing.found_view(console.session, {"id": str(job.erasure_id)})
        assert [(row["topic"], row["failed"]) for row in value["topics"]] == [("u", 0), ("t", 1)]
        assert value["partitions"][-1]["error"] == "It has no leader now, so it can't be searched."

    in_console(test)


def test_brokers_are_summed_over_partitions():
    cleaned = {
        TopicPartition("t", 0): CleanedReplicas((1, 2), {3: "not done within 5000 ms: it is no longer live"}),
        TopicPartition("t", 1): CleanedReplicas((1,), {2: "it is not live", 3: "it is no longer live"}),
    }
    rows = {row["broker"]: (row["clean"], row["replicas"], row["reasons"]) for row in broker_rows(cleaned)}
    assert rows == {1: (2, 2, []), 2: (1, 2, ["it is not live"]), 3: (0, 2, ["it is no longer live"])}
    assert [(row["partition"], row["brokers"]) for row in missing_rows(cleaned)] == [(0, [3]), (1, [2, 3])]

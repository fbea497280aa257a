"""A broker with its metadata in etcd, which is killed, frozen, down for long, or of another cluster."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.simulation.client import WireClient
from lowtide.simulation.load import PartitionLoad
from tests import freezing
from tests.etcd import EtcdProcess, missing

from .serving import ServeProcess, run_to_end, serve_command

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "kept"
ROUNDS = int(os.environ.get("ROUNDS", "8"))
SEED = int(os.environ.get("SEED", "7"))

LIMIT_S = 120.0
TIME_TO_LIVE_S = 4.0
"""The `broker.session.timeout.ms`: how long etcd waits for a broker's renewal."""

LONG_S = 240
"""A lease that is too long for any test to wait for it."""

UNFENCED_S = 1.0
"""A broker acts at least this long after etcd's last answer: 0.8 of the session, less some renewals."""

METADATA_VERSION, CREATE_TOPICS_VERSION, FETCH_VERSION = 12, 7, 12


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path / "etcd") as process:
        yield process


class Scene:
    """One broker over all its restarts, its etcd, and a client with a history."""

    def __init__(self, tmp_path: Path, etcd: EtcdProcess, *settings: str) -> None:
        self.etcd = etcd
        self.settings = settings
        self.directory = tmp_path / "log"
        self.broker = self.new_broker()
        self.load = PartitionLoad(TOPIC, 0, lambda: self.broker.connect(), random.Random(7))

    def new_broker(self) -> ServeProcess:
        return ServeProcess(self.directory, *self.settings, metadata=f"etcd://{self.etcd.endpoint}")

    async def start(self) -> WireClient:
        self.broker = self.new_broker()
        await self.broker.__aenter__()
        return await self.broker.connect()

    async def events(self, name: str) -> None:
        """Waits until the broker's log has an event whose text starts with `name`."""
        async with asyncio.timeout(LIMIT_S):
            while not any(line["event"].startswith(name) for line in self.broker.lines):
                await asyncio.sleep(0.02)

    async def acts(self, client: WireClient) -> bool:
        """Produce; returns whether that was acknowledged.

        Any answer but NOT_LEADER_OR_FOLLOWER or an acknowledgement fails the test.
        """
        before = self.load.counts["produced"]
        await self.load.produce(client, 1)
        return self.load.counts["produced"] > before

    async def until_it_acts(self, client: WireClient) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not await self.acts(client):
                await asyncio.sleep(0.05)

    async def create_topic(self, client: WireClient) -> None:
        """Creates the topic, with some records."""
        await self.load.create_topic(client, {})
        await self.until_it_acts(client)
        for _ in range(10):
            await self.load.step(client)


async def metadata(client: WireClient) -> dict[str, tuple[bytes, int]]:
    """Topic ids, and the leader epoch of each topic's first partition."""
    answer = await client.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION)
    return {topic.name: (topic.topic_id, topic.partitions[0].leader_epoch) for topic in answer.topics}


async def create_error(client: WireClient, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = await client.request(
        CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False), CREATE_TOPICS_VERSION
    )
    return int(answer.topics[0].error_code)


def parked_fetch(client: WireClient, offset: int) -> asyncio.Future[object]:
    """Returns a fetch that waits for more bytes than will arrive."""
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=TOPIC, partitions=[row])
    return client.send(
        FetchRequest(max_wait_ms=60_000, min_bytes=1 << 19, max_bytes=1 << 20, topics=[topic]), FETCH_VERSION
    )


async def test_metadata_are_in_etcd_and_survive_the_broker(tmp_path: Path, etcd: EtcdProcess) -> None:
    """Stopped or killed, the broker finds its topics there again; after a kill it does not wait for its own lease."""
    scene = Scene(tmp_path, etcd, f"broker.session.timeout.ms={LONG_S * 1000}")
    client = await scene.start()
    try:
        await scene.create_topic(client)
        (topic_id, epoch), *_ = (await metadata(client)).values()
        assert not [*scene.directory.glob("*.sqlite*")]
        assert await scene.broker.terminate() == 0
        for life in (1, 2):
            begun = time.monotonic()
            client = await scene.start()
            assert time.monotonic() - begun < LONG_S / 2
            assert await metadata(client) == {TOPIC: (topic_id, epoch + life)}
            await scene.load.read_all(client)
            await scene.until_it_acts(client)
            assert not scene.broker.faults
            await scene.broker.kill()
    finally:
        await scene.broker.kill()


async def test_an_etcd_that_is_down_for_a_moment_loses_no_record(tmp_path: Path, etcd: EtcdProcess) -> None:
    """etcd is killed and started: records are produced and deleted all the time; only metadata requests wait."""
    scene = Scene(tmp_path, etcd)
    client = await scene.start()
    try:
        await scene.create_topic(client)
        before = await metadata(client)
        await asyncio.to_thread(etcd.kill)
        until = time.monotonic() + UNFENCED_S
        while time.monotonic() < until:
            assert await scene.acts(client)
            await scene.load.step(client)
        assert await create_error(client, "other") in {
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_CONTROLLER,
        }
        await asyncio.to_thread(etcd.start)
        async with asyncio.timeout(LIMIT_S):
            while await create_error(client, "other") not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                await asyncio.sleep(0.05)
        await scene.load.read_all(client)
        after = await metadata(client)
        assert after.pop("other")
        assert after == before, "the same registration, and the same leader epoch"
        await asyncio.to_thread(etcd.kill)
        assert await scene.broker.terminate() == 0, "a stop needs no etcd"
        assert not scene.broker.faults
    finally:
        await scene.broker.kill()


@pytest.mark.slow
async def test_a_broker_that_cannot_renew_its_lease_stops_acting_and_continues_by_itself(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    """Before etcd may end its lease the broker stops acknowledging; when etcd returns it is elected again."""
    scene = Scene(tmp_path, etcd)
    client, waiting = await scene.start(), await scene.broker.connect()
    try:
        await scene.create_topic(client)
        before = await metadata(client)
        bounds = await scene.load.bounds(client)
        assert bounds is not None
        etcd.freeze()
        frozen = time.monotonic()
        parked = parked_fetch(waiting, bounds[1])
        asked = frozen
        while await scene.acts(client):
            assert asked - frozen < TIME_TO_LIVE_S, "etcd may have ended the lease by now"
            await asyncio.sleep(0.02)
            asked = time.monotonic()
        assert time.monotonic() - frozen > UNFENCED_S
        assert await scene.load.bounds(client) is None, "reads are not answered either"
        async with asyncio.timeout(LIMIT_S):
            answer = await parked
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[attr-defined]
        await scene.events("broker is fenced")
        await asyncio.sleep(max(0.0, frozen + TIME_TO_LIVE_S + 1 - time.monotonic()))
        etcd.thaw()
        await scene.until_it_acts(client)
        await scene.load.read_all(client)
        (topic_id, epoch), *_ = before.values()
        assert await metadata(client) == {TOPIC: (topic_id, epoch + 1)}, (
            "no leadership of an earlier registration continues"
        )
        await scene.events("broker is unfenced: it can act as a leader")
        assert not scene.broker.faults
    finally:
        await scene.broker.kill()


async def test_a_broker_that_slept_acknowledges_nothing_before_it_is_registered_again(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    """A woken broker first handles the requests that arrived meanwhile, before it notices that it was suspended."""
    scene = Scene(tmp_path, etcd)
    client = await scene.start()
    try:
        await scene.create_topic(client)
        before = await metadata(client)
        freezing.freeze(scene.broker.pid)
        sending = asyncio.ensure_future(scene.acts(client))
        await asyncio.sleep(TIME_TO_LIVE_S + 1)
        freezing.thaw(scene.broker.pid)
        assert not await sending
        await scene.until_it_acts(client)
        await scene.load.read_all(client)
        (topic_id, epoch), *_ = before.values()
        assert await metadata(client) == {TOPIC: (topic_id, epoch + 1)}
        assert not scene.broker.faults
    finally:
        await scene.broker.kill()


@pytest.mark.slow
async def test_no_log_directory_is_special(tmp_path: Path, etcd: EtcdProcess) -> None:
    """Without metadata in it the first directory may fail too: at a start, and while the broker runs."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("not a directory")
    scene = Scene(tmp_path, etcd)
    scene.directory = Path(f"{first},{second}")
    client = await scene.start()
    try:
        await scene.create_topic(client)
        await scene.events("log directory is offline")
        assert await scene.broker.terminate() == 0
        assert [path.name for path in second.glob(f"{TOPIC}-*")] == [f"{TOPIC}-0"]
        first.unlink()
        scene.directory = Path(f"{second},{first}")
        client = await scene.start()
        await scene.load.read_all(client)
    finally:
        await scene.broker.kill()


@pytest.mark.slow
async def test_a_broker_with_anothers_id_or_anothers_metadata_is_refused(tmp_path: Path, etcd: EtcdProcess) -> None:
    """It gets a message, and the broker with the id is not affected.

    An etcd without the topics of the directories is refused too.
    """
    scene = Scene(tmp_path, etcd)
    client = await scene.start()
    try:
        await scene.create_topic(client)
        address = f"etcd://{etcd.endpoint}"
        impatient = "initial.broker.registration.timeout.ms=1500"
        second = await asyncio.to_thread(run_to_end, serve_command(tmp_path / "second", impatient, metadata=address))
        assert second.returncode == 2
        assert "another broker with id 0 is alive" in second.stderr
        assert await scene.acts(client)
        assert await scene.broker.terminate() == 0
        with EtcdProcess(tmp_path / "empty") as empty:
            other = await asyncio.to_thread(
                run_to_end, serve_command(scene.directory, metadata=f"etcd://{empty.endpoint}")
            )
        assert other.returncode == 2
        assert f"etcd at {empty.endpoint}: the metadata are missing or empty" in other.stderr
        embedded = await asyncio.to_thread(run_to_end, serve_command(scene.directory))
        assert embedded.returncode == 2
        assert "the metadata are missing or empty" in embedded.stderr
    finally:
        await scene.broker.kill()


@pytest.mark.slowest
async def test_broker_and_etcd_are_killed_again_and_again(tmp_path: Path, etcd: EtcdProcess) -> None:
    """Kills at random moments: no acknowledged record is lost, no deleted one returns, topics keep their ids."""
    scene, moments = Scene(tmp_path, etcd), random.Random(SEED)
    client = await scene.start()
    try:
        await scene.create_topic(client)
        before = await metadata(client)
        for _ in range(ROUNDS):
            stop = asyncio.Event()
            working = asyncio.ensure_future(scene.load.run(until=stop, pause_s=0.004))
            await asyncio.sleep(moments.uniform(0.05, 0.4))
            victims = moments.choice(([etcd.kill], [etcd.kill], [scene.broker.kill], [scene.broker.kill, etcd.kill]))
            for kill in victims:
                if kill == etcd.kill:
                    await asyncio.to_thread(kill)
                else:
                    await scene.broker.kill()
            if etcd.kill in victims:
                await asyncio.sleep(moments.uniform(0.0, 0.3))
                await asyncio.to_thread(etcd.start)
            assert not scene.broker.faults
            if len(victims) == 2 or victims[0] != etcd.kill:
                client = await scene.start()
            await scene.until_it_acts(client)
            stop.set()
            await working
            await scene.load.read_all(client)
            after = await metadata(client)
            assert {name: topic_id for name, (topic_id, _) in after.items()} == {
                name: topic_id for name, (topic_id, _) in before.items()
            }
        counts = scene.load.counts
        assert min(counts["produced"], counts["deleted"], counts["read"]) > ROUNDS, counts
    finally:
        await scene.broker.kill()

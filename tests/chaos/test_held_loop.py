"""A broker whose event loop is blocked by a call, with a real etcd.

A block shorter than the session has no effect; a longer one fences the broker. On a busy machine a session of three
seconds may also end because etcd answers late: what keeps its session is tried again, and a keeper that doesn't renew
loses each time.

The broker runs in this process, so that a test can block its loop; another one, in a separate process, would take the
leadership.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.ports import real_ports
from lowtide.metadata.etcd_address import parse_address
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.simulation.client import WireClient
from tests.etcd import EtcdProcess, missing
from tests.free_ports import HOST

from .asking import CREATE_TOPICS_VERSION, PRODUCE_VERSION, only_row, produce_request, topic_request
from .serving import ServeProcess

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
pytest.importorskip("lowtide.metadata.etcd", exc_type=ImportError)

TOPIC = "held"
SESSION_S = 3.0
SETTINGS = ("broker.heartbeat.interval.ms=900", "auto.leader.rebalance.enable=false")
SESSION = f"broker.session.timeout.ms={SESSION_S * 1000:.0f}"
OTHERS_SESSION = "broker.session.timeout.ms=20000"
"""It keeps the leadership on a busy machine, too."""

ATTEMPTS = 5

LIMIT_S = 120.0
METADATA_VERSION = 12
KEEPER = "lease keeper"
MADE = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
NOT_YET_MADE = {ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}


class Lines:
    """The log of the broker: its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **_values: self.events.append(event)


def hold(seconds: float) -> None:
    """Block the caller's loop."""
    time.sleep(seconds)


def keepers() -> int:
    return sum(thread.name == KEEPER for thread in threading.enumerate())


class Scene:
    """The broker whose loop is blocked, which leads a topic, and one that follows it."""

    def __init__(self, broker: Broker, other: ServeProcess, etcd: EtcdProcess, lines: Lines) -> None:
        self.broker, self.other, self.etcd, self.lines = broker, other, etcd, lines

    async def until(self, condition: Callable[..., Awaitable[bool]]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not await condition():
                await asyncio.sleep(0.02)

    async def leader(self) -> tuple[int, int, list[int]]:
        """Returns leader, epoch and ISR as the other broker knows them; -1 twice and none for an unknown topic."""
        client = await self.other.connect()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        rows = (await client.request(request, METADATA_VERSION)).topics[0].partitions
        client.close()
        if not rows:
            return -1, -1, []
        row = rows[0]
        return row.leader_id, row.leader_epoch, sorted(row.isr_nodes)

    async def produces(self, client: WireClient) -> bool:
        row = only_row(await client.request(produce_request(TOPIC, 0, [b"value"]), PRODUCE_VERSION))
        assert row.error_code in {
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }, row
        return bool(row.error_code == ErrorCode.NONE)

    async def settles(self, client: WireClient) -> None:
        """Waits until this broker appends what `client` produces, or has been replaced as the leader."""

        async def is_settled() -> bool:
            return await self.produces(client) or (await self.leader())[0] == 2

        await self.until(is_settled)

    @property
    def epoch(self) -> int:
        assert self.broker._session is not None
        return self.broker._session.broker_epoch


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    before = keepers()
    lines = Lines()
    with EtcdProcess(folder / "etcd") as etcd:
        address = f"etcd://{etcd.endpoint}"
        given = dict(setting.split("=") for setting in (SESSION, *SETTINGS))
        own: dict[str, Any] = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://{HOST}:0",
            "log.dirs": str(folder / "broker-1"),
            **given,
        }
        broker = Broker(
            load_config(settings=own), real_ports(asyncio.get_running_loop(), parse_address(address)), lines
        )
        async with ServeProcess(folder / "broker-2", "node.id=2", OTHERS_SESSION, *SETTINGS, metadata=address) as other:
            await broker.start()
            try:
                playing = Scene(broker, other, etcd, lines)
                client = await WireClient.connect(HOST, broker.port)

                async def is_made() -> bool:
                    """Not while a broker has lost its session and is not registered again."""
                    answer = await client.request(request, CREATE_TOPICS_VERSION)
                    code = answer.topics[0].error_code
                    assert code in MADE | NOT_YET_MADE, answer.topics[0]
                    return code in MADE

                request = topic_request(TOPIC, [(1, 2)], configs={"min.insync.replicas": "2"})
                await playing.until(is_made)

                async def is_in_sync() -> bool:
                    _, _, isr = await playing.leader()
                    return isr == [1, 2]

                await playing.until(is_in_sync)
                client.close()
                yield playing
            finally:
                await broker.stop()
        assert keepers() == before, "the thread ends with its broker"


async def keeps_its_session(folder: Path, trial: Callable[[Scene, WireClient], Awaitable[None]]) -> bool:
    """Returns whether the broker keeps its leadership and registration over `trial`, in one of several attempts."""
    for attempt in range(ATTEMPTS):
        async with scene(folder / str(attempt)) as play:
            before = play.epoch, await play.leader()
            client = await WireClient.connect(HOST, play.broker.port)
            await play.settles(client)
            await trial(play, client)
            client.close()
            if before == (play.epoch, await play.leader()):
                return True
    return False


@pytest.mark.slow
async def test_a_block_shorter_than_the_session_loses_neither_lease_nor_leadership(tmp_path: Path) -> None:
    """Several in turn, started at several moments between two heartbeats."""

    async def blocks(play: Scene, client: WireClient) -> None:
        for rest_s in (0.35, 0.6, 0.85):
            await asyncio.sleep(rest_s)
            hold(0.9 * SESSION_S)
            await play.settles(client)

    assert await keeps_its_session(tmp_path, blocks)


async def test_a_block_longer_than_the_session_is_fenced_before_it_acknowledges_anything(tmp_path: Path) -> None:
    """The loop first finds the requests that clients sent meanwhile."""
    async with scene(tmp_path) as play:
        client = await WireClient.connect(HOST, play.broker.port)
        await play.settles(client)
        epoch, (led_by, leader_epoch, _) = play.epoch, await play.leader()
        sent = client.send(produce_request(TOPIC, 0, [b"value"]), PRODUCE_VERSION)
        hold(1.5 * SESSION_S)
        assert only_row(await sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        async def is_led_by_the_other() -> bool:
            leader, now, _ = await play.leader()
            return leader == 2 and (now > leader_epoch or led_by == 2)

        async def is_registered_again() -> bool:
            return play.epoch > epoch

        await play.until(is_led_by_the_other)
        await play.until(is_registered_again)
        assert not await play.produces(client)
        client.close()


@pytest.mark.slow
async def test_a_keeper_returns_with_its_etcd(tmp_path: Path) -> None:
    """An outage of etcd longer than a session fences the broker; then the broker and its keeper continue."""

    async def outage(play: Scene, client: WireClient) -> None:
        await asyncio.to_thread(play.etcd.kill)

        async def is_fenced() -> bool:
            return not await play.produces(client)

        await play.until(is_fenced)
        await asyncio.to_thread(play.etcd.start)
        await play.settles(client)
        await asyncio.sleep(0.6 * SESSION_S)  # The keeper has tried again too.
        hold(0.9 * SESSION_S)
        await play.settles(client)

    assert await keeps_its_session(tmp_path, outage)

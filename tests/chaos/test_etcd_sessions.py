"""Brokers' sessions on an etcd of three members that are killed and stopped.

Their leases last ten times as long as by default: a busy machine may then take seconds over what takes milliseconds.
What is counted are renewals; tests/unit/metadata has the times by default, on a virtual clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.errors import SessionError
from lowtide.metadata.records import Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import MetadataStoreError, Put
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.tasks import TaskRegistry
from tests.etcd import EtcdCluster, missing

etcd_store = pytest.importorskip("lowtide.metadata.etcd", exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "127.0.0.1", 9092),))
SETTINGS = SessionSettings(time_to_live_ms=40_000, image_age_ms=240_000)
SHORT = SessionSettings(image_age_ms=24_000)
"""The timeout of sessions that must end."""

LIMIT_S = 120.0
RENEWALS = 3
STILL_S = 1.0
"""How long a slow etcd does not answer."""


class Scene:
    """Two brokers' sessions and the etcd that they share."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.failures: list[BaseException] = []
        self.tasks = TaskRegistry(lambda _name, error: self.failures.append(error))
        self.sessions: list[MetadataSession] = []
        self.stores: list[object] = []

    async def join(self, broker_id: int, first_member: int, settings: SessionSettings = SETTINGS) -> MetadataSession:
        """Returns a session whose first endpoint is that of this member."""
        endpoints = [*self.cluster.endpoints[first_member:], *self.cluster.endpoints[:first_member]]
        store = await etcd_store.EtcdStore.open(endpoints)
        session = MetadataSession(
            SessionPorts(store=store, clock=SystemClock(), tasks=self.tasks, random=random.Random(broker_id)),
            broker_id=broker_id,
            settings=settings,
        )
        self.stores.append(store)
        self.sessions.append(session)
        await session.start(REGISTRATION)
        return session

    async def until(self, condition: Callable[..., bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def renewed(self, session: MetadataSession) -> bool:
        """Returns after a few more renewals of the session, with whether it was fenced at any moment."""
        was_fenced, count, until_ms = False, 0, session.fenced_from_ms
        async with asyncio.timeout(LIMIT_S):
            while count < RENEWALS:
                was_fenced |= session.is_fenced
                if session.fenced_from_ms > until_ms:
                    count, until_ms = count + 1, session.fenced_from_ms
                await asyncio.sleep(0.01)
        return was_fenced


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    cluster = EtcdCluster(folder / "etcd")
    await asyncio.to_thread(cluster.__enter__)
    playing = Scene(cluster)
    try:
        yield playing
        assert playing.failures == []
    finally:
        for session in playing.sessions:
            await session.close()
        for store in playing.stores:
            await store.close()  # type: ignore[attr-defined]
        await playing.tasks.cancel_all()
        await asyncio.to_thread(cluster.__exit__)


def put(value: bytes) -> ChangePlan:
    return ChangePlan((Step((Put(b"written", value),)),), needs_controller=False)


async def written(session: MetadataSession, value: bytes) -> int:
    """Writes it, repeating as often as needed."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await session.commit(put(value))
            except (MetadataStoreError, SessionError):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(("how", "leads"), [("killed", True), ("stopped", True), ("stopped", False)])
async def test_one_member_of_three_costs_no_registration(tmp_path: Path, how: str, leads: bool) -> None:
    """Whichever it is: sessions that were connected to it go on at another, before 0.8 of their time is over."""
    async with scene(tmp_path) as play:
        members = play.cluster.members
        victim = next(number for number, member in enumerate(members) if member.leader() is leads)
        there, elsewhere = await play.join(1, victim), await play.join(2, (victim + 1) % 3)
        epochs = there.broker_epoch, elsewhere.broker_epoch
        if how == "killed":
            await asyncio.to_thread(members[victim].kill)
        else:
            members[victim].freeze()
        assert await asyncio.gather(play.renewed(there), play.renewed(elsewhere)) == [False, False]
        revision = await written(there, b"1")
        async with asyncio.timeout(LIMIT_S):
            await elsewhere.wait_for(revision)
        assert (there.broker_epoch, elsewhere.broker_epoch) == epochs


async def test_without_a_majority_every_broker_is_fenced_and_continues_by_itself(tmp_path: Path) -> None:
    """Two of three are dead: no lease is renewed, so no broker acts.

    The remaining member does not answer reads from its own state.
    """
    async with scene(tmp_path) as play:
        first, second = await play.join(1, 0, SHORT), await play.join(2, 1, SHORT)
        for member in play.cluster.members[:2]:
            await asyncio.to_thread(member.kill)
        await play.until(lambda: first.is_fenced and second.is_fenced)
        for member in play.cluster.members[:2]:
            await asyncio.to_thread(member.launch, *play.cluster.everyone)
        await play.until(lambda: not first.is_fenced and not second.is_fenced)
        revision = await written(first, b"again")
        async with asyncio.timeout(LIMIT_S):
            await second.wait_for(revision)
        assert sorted(second.image.brokers) == [1, 2]
        assert {first.image.controller_id, second.image.controller_id} <= {1, 2}


async def test_a_slow_etcd_costs_no_registration(tmp_path: Path) -> None:
    """A majority is suspended for a second at a time, repeatedly: late renewals are in time."""
    async with scene(tmp_path) as play:
        session = await play.join(1, 0)
        epoch = session.broker_epoch
        for _ in range(2):
            for member in play.cluster.members[1:]:
                member.freeze()
            await asyncio.sleep(STILL_S)
            assert not session.is_fenced
            for member in play.cluster.members[1:]:
                member.thaw()
            assert not await play.renewed(session)
        assert session.broker_epoch == epoch


async def test_what_was_compacted_while_a_session_was_cut_off_is_read_again(tmp_path: Path) -> None:
    """The watch cannot continue; the image does not go back, and has the current state."""
    async with scene(tmp_path) as play:
        first, second = await play.join(1, 0, SHORT), await play.join(2, 1, SHORT)
        shown: list[int] = []
        first.on_image(lambda _old, new, _delta: shown.append(new.revision))
        for member in play.cluster.members[:2]:
            await asyncio.to_thread(member.kill)
        await play.until(lambda: first.is_fenced)
        for member in play.cluster.members[:2]:
            await asyncio.to_thread(member.launch, *play.cluster.everyone)
        for number in range(5):
            revision = await written(second, b"%d" % number)
        await asyncio.to_thread(play.cluster.members[2].compact, revision)
        async with asyncio.timeout(LIMIT_S):
            await first.wait_for(revision)
        await play.until(lambda: not first.is_fenced)
        assert shown == sorted(set(shown))
        assert sorted(first.image.brokers) == [1, 2]

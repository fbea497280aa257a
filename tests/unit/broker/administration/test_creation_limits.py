"""How many topics and partitions clients may create."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lowtide.broker.administration.creation_limits import AUTOMATIC_MAX, CreationLimits, Throttle
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.token_bucket import BURST_S, TokenBucket
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation


class Connection:
    """A client."""


class World:
    """A broker that hosts `hosted` partitions, in a cluster of `brokers`."""

    def __init__(self, hosted: int = 0, brokers: int = 1, **settings: object) -> None:
        self.now_ms = 5_000
        config = load_config(settings={name.replace("_", "."): str(value) for name, value in settings.items()})
        image = SimpleNamespace(brokers=dict.fromkeys(range(brokers)))
        context: Any = SimpleNamespace(
            config=config,
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            metadata=SimpleNamespace(image=image),
            replicas=SimpleNamespace(partitions=dict.fromkeys(range(hosted))),
        )
        self.limits = CreationLimits(context)


def test_a_bucket_has_its_rate_and_a_burst():
    bucket = TokenBucket(0, 10)
    assert [bucket.take(1, 0, 10) for _ in range(10 * BURST_S)] == [0] * 10 * BURST_S
    assert bucket.take(1, 0, 10) > 0
    assert [bucket.take(1, 1000, 10) for _ in range(11)][9:] == [0, 101]
    assert bucket.take(1, 10**9, 10) == 0


def test_a_bucket_admits_a_large_request_and_then_waits():
    bucket = TokenBucket(0, 10)
    assert bucket.take(1_000, 0, 10) == 0
    wait_ms = bucket.take(1, 0, 10)
    assert wait_ms == (1_000 - 10 * BURST_S + 1) * 100 + 1
    assert bucket.take(1, wait_ms - 200, 10) > 0
    assert bucket.take(1, wait_ms, 10) == 0


def test_partitions_above_the_limit_are_refused_by_the_keys_name():
    world = World(hosted=90, lowtide_partitions_max=100)
    assert world.limits.check_partitions("t", 10) is None
    refusal = world.limits.check_partitions("t", 11)
    assert refusal == Refusal(
        ErrorCode.POLICY_VIOLATION,
        "A broker may host 100 partitions (lowtide.partitions.max): it has 90, and would get 11 more",
    )
    assert world.limits.check_partitions("__consumer_offsets", 50) is None, "groups must work"


def test_replicas_are_spread_over_the_brokers():
    world = World(hosted=90, brokers=3, lowtide_partitions_max=100)
    assert world.limits.check_partitions("t", 30) is None
    assert world.limits.check_partitions("t", 31) is not None


def test_mass_creation_by_a_tool_is_within_the_defaults():
    """A thousand topics of six partitions in one CreateTopics, and again."""
    world = World()
    assert [world.limits.throttle_ms(6) for _ in range(2_000)] == [0] * 2_000


def test_one_metadata_request_has_only_so_many_topics_created():
    world, connection = World(), Connection()
    begun = sum(world.limits.may_create_automatically(connection, 0) for _ in range(5_000))
    assert begun == 50 * BURST_S
    assert world.limits.may_create_automatically(Connection(), 0), "another client is not delayed"
    assert not world.limits.may_create_automatically(Connection(), AUTOMATIC_MAX)
    world.now_ms += 1_000
    assert world.limits.may_create_automatically(connection, 0)


def test_a_connection_that_is_gone_is_forgotten():
    world, connection = World(), Connection()
    world.limits.may_create_automatically(connection, 0)
    assert len(world.limits._automatic) == 1
    del connection
    assert len(world.limits._automatic) == 0


def test_refused_creations_are_logged_once_a_second():
    world = World()
    assert [world.limits.may_log() for _ in range(3)] == [True, False, False]
    world.now_ms += 1_000
    assert world.limits.may_log()


def test_a_version_with_the_error_is_told_when_to_try_again():
    world = World(lowtide_partitions_created_per_second=1)

    async def run() -> None:
        throttle = Throttle(world.limits, 30_000, tells=True)
        assert await throttle.before(30) is None
        refusal = await throttle.before(1)
        assert refusal is not None
        assert refusal.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "lowtide.partitions.created.per.second" in (refusal.message or "")
        assert throttle.throttle_ms > 10_000
        world.now_ms += throttle.throttle_ms
        assert await throttle.before(1) is None

    asyncio.run(run())


def test_an_older_version_waits():
    world = World(lowtide_partitions_created_per_second=1)

    async def run(loop: SimulatedLoop) -> None:
        began_ms = world.now_ms
        throttle = Throttle(world.limits, 30_000, tells=False)
        loop.call_later(5, setattr, world, "now_ms", began_ms + 60_000)
        assert await throttle.before(30) is None
        assert await throttle.before(1) is None
        assert loop.time() >= 5
        assert throttle.throttle_ms == 0

    run_simulation(run, 1)


def test_an_older_version_waits_no_longer_than_its_request():
    world = World(lowtide_partitions_created_per_second=1)

    async def run() -> None:
        throttle = Throttle(world.limits, 100, tells=False)
        assert await throttle.before(30) is None
        refusal = await throttle.before(1)
        assert refusal is not None
        assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "lowtide.partitions.created.per.second" in (refusal.message or "")

    asyncio.run(run())

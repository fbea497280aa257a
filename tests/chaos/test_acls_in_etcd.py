"""Access rules of two brokers with an etcd: both enforce a rule once it is answered, even if one was silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.protocol.messages.create_acls import CreateAclsRequest
from tests.etcd import EtcdProcess, missing

from .serving import ServeProcess
from .test_acls import EVERYTHING, OPEN, READ, TOPIC, removal, rule, send

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SETTINGS = [f"{name}={value}" for name, value in OPEN.items()]
BOUND_S = 60.0
"""Far above the five seconds for which a change waits for a silent broker: the machine may be slow."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path / "etcd") as process:
        yield process


def broker(number: int, tmp_path: Path, etcd: EtcdProcess) -> ServeProcess:
    return ServeProcess(tmp_path / str(number), f"node.id={number}", *SETTINGS, metadata=f"etcd://{etcd.endpoint}")


async def names(of: ServeProcess) -> set[str]:
    return {row.resource_name for row in (await send(of.port, EVERYTHING)).resources}


@pytest.mark.slow
async def test_rules_in_etcd(tmp_path: Path, etcd: EtcdProcess) -> None:
    async with broker(1, tmp_path, etcd) as one:
        async with broker(2, tmp_path, etcd) as two:
            for number in range(5):
                made = await send(
                    (one, two)[number % 2].port, CreateAclsRequest(creations=[rule(TOPIC, f"t{number}", READ)])
                )
                assert [row.error_code for row in made.results] == [0]
                expected = {f"t{each}" for each in range(number + 1)}
                assert (await names(one), await names(two)) == (expected, expected)
            two.freeze()
            began = time.monotonic()
            made = await asyncio.wait_for(
                send(one.port, CreateAclsRequest(creations=[rule(TOPIC, "silent", READ)])), BOUND_S
            )
            assert [row.error_code for row in made.results] == [0]
            named = [line for line in one.lines if line["event"].startswith("broker may still act on older metadata")]
            assert named == [] or named[0]["broker_id"] == 2
            assert time.monotonic() - began > 1, "a registered broker was waited for"
            two.thaw()
            async with asyncio.timeout(BOUND_S):
                while "silent" not in await names(two):
                    await asyncio.sleep(0.1)
        removed = await send(one.port, removal(TOPIC, "t0"))
        assert len(removed.filter_results[0].matching_acls) == 1
    async with broker(1, tmp_path, etcd) as one:
        assert await names(one) == {"t1", "t2", "t3", "t4", "silent"}

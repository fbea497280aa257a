"""Delegation tokens of brokers with an etcd: valid at all of them once they are answered, and after SIGKILL."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from lowtide.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from lowtide.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.etcd import missing

from .cluster_processes import ClusterProcesses
from .security import LoginRefusedError, Security

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

VERSION = 3
HOUR_MS = 3_600_000
SHORT_MS = 3_000


class Tokens:
    """A client that has a token of each broker's making."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster

    async def ask(self, broker_id: int, request: Any, version: int = VERSION) -> Any:
        client = await self.cluster.connect(broker_id)
        try:
            return await client.request(request, version)
        finally:
            client.close()

    async def create(self, broker_id: int, lifetime_ms: int = -1) -> Any:
        made = await self.ask(broker_id, CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=lifetime_ms))
        assert made.error_code == 0
        return made

    async def ends(self, broker_id: int) -> dict[str, int]:
        """Returns when each token expires, according to a broker's answer to its owner."""
        told = await self.ask(broker_id, DescribeDelegationTokenRequest(owners=None))
        assert told.error_code == 0
        return {row.token_id: row.expiry_timestamp for row in told.tokens}

    async def opens(self, token: Any) -> list[bool]:
        """Returns the brokers that accept a token as a login."""
        return [await self._opens(broker_id, token) for broker_id in self.cluster.ids]

    async def _opens(self, broker_id: int, token: Any) -> bool:
        try:
            client = await self.cluster.connect(
                broker_id, token.token_id, base64.b64encode(token.hmac).decode(), by_token=True
            )
        except LoginRefusedError:
            return False
        client.close()
        return True

    async def until(self, condition: Callable[..., Awaitable[bool]]) -> None:
        await self.cluster.until("a token has ended", condition)


@pytest.mark.slow
async def test_tokens_in_etcd(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path / "cluster", security=Security(tmp_path / "security")) as cluster:
        tokens = Tokens(cluster)
        token, later = await tokens.create(1), await tokens.create(2)
        assert await tokens.opens(token) == [True] * 3
        assert await tokens.opens(later) == [True] * 3
        renewed = await tokens.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=HOUR_MS), 2)
        assert renewed.error_code == 0
        assert {(await tokens.ends(broker_id))[token.token_id] for broker_id in cluster.ids} == {
            renewed.expiry_timestamp_ms
        }
        await cluster.kill(*cluster.ids)
        await asyncio.to_thread(cluster.etcd.kill)
        await asyncio.to_thread(cluster.etcd.start)
        await cluster.start(*cluster.ids)
        assert await tokens.opens(token) == [True] * 3
        assert (await tokens.ends(3))[token.token_id] == renewed.expiry_timestamp_ms
        ended = await tokens.ask(3, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1), 2)
        assert ended.error_code == 0
        assert await tokens.opens(token) == [False] * 3
        assert [set(await tokens.ends(broker_id)) for broker_id in cluster.ids] == [{later.token_id}] * 3
        cluster.check_no_faults()


@pytest.mark.slow
async def test_a_token_ends_by_itself(tmp_path: Path) -> None:
    """No broker takes it then, and the metadata lose it."""
    async with ClusterProcesses(tmp_path / "cluster", brokers=2, security=Security(tmp_path / "security")) as cluster:
        tokens = Tokens(cluster)
        token = await tokens.create(1, SHORT_MS)

        async def is_gone() -> bool:
            return not any([await tokens.ends(broker_id) for broker_id in cluster.ids])

        await tokens.until(is_gone)
        assert await tokens.opens(token) == [False, False]

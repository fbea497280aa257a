"""A broker checks that a connection reaches the expected broker of its cluster (KIP-1242)."""

from __future__ import annotations

import pytest

from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsResponse
from lowtide.runtime.simulated_loop import SimulatedLoop

from .test_peer_client import FETCH, Scene, ScriptedPeer, answer_of, echo, simulated


@pytest.mark.parametrize(("error_code", "is_reached"), [(0, True), (ErrorCode.REBOOTSTRAP_REQUIRED, False)])
def test_a_peer_is_asked_whether_it_is_the_expected_broker(error_code: int, is_reached: bool) -> None:
    """KIP-1242: otherwise a request could be carried out by another cluster that has the address now."""

    def script(key: int, version: int, correlation_id: int) -> bytes:
        if key == ApiKey.API_VERSIONS:
            return answer_of(key, version, correlation_id, ApiVersionsResponse(error_code=error_code, api_keys=[]))
        return echo(key, version, correlation_id)

    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        peers_of_mine = PeerClients(scene.clients.clock, scene.tasks, scene.log, cluster_id="mine")
        client = peers_of_mine.client(2, scene.listener, "fetch")
        if is_reached:
            await client.request(ApiKey.FETCH, 17, FETCH, 1000)
        else:
            with pytest.raises(PeerError, match="not broker 2 of cluster mine") as caught:
                await client.request(ApiKey.FETCH, 17, FETCH, 1000)
            assert not caught.value.was_sent
        peers_of_mine.close()
        assert [peer.requests for peer in peers] == [[(18, 5), (1, 17)] if is_reached else [(18, 5)]]

    simulated(body, script)

"""A broker that logs in at another one checks first that it is the expected broker of its cluster (KIP-1242)."""

from __future__ import annotations

import pytest

from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.network.peer_login import PeerLogin
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsResponse
from lowtide.runtime.simulated_loop import SimulatedLoop

from .test_peer_client import FETCH, Scene, ScriptedPeer, answer_of, simulated

LOGIN = PeerLogin(sasl=ClientSaslSettings(mechanism="PLAIN", username="broker", password="secret"))


def test_a_peer_of_another_cluster_gets_no_login() -> None:
    """Its address may belong to another cluster now, which must not learn the password."""

    def script(key: int, version: int, correlation_id: int) -> bytes:
        answer = ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])
        return answer_of(key, version, correlation_id, answer)

    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        peers_of_mine = PeerClients(scene.clients.clock, scene.tasks, scene.log, cluster_id="mine", login=LOGIN)
        with pytest.raises(PeerError, match="not broker 2 of cluster mine") as caught:
            await peers_of_mine.client(2, scene.listener, "fetch").request(ApiKey.FETCH, 17, FETCH, 1000)
        assert not caught.value.was_sent
        peers_of_mine.close()
        assert [peer.requests for peer in peers] == [[(18, 5)]]

    simulated(body, script)

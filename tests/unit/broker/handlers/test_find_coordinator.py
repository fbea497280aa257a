"""FindCoordinator where this broker is to coordinate, and its log of the groups isn't there yet."""

from __future__ import annotations

import asyncio

from bench.request_path import World
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation

KEY = "g" * 32_767
"""The longest: a sentence with it has more than a string of the protocol may have."""


def test_a_broker_coordinates_what_it_leads() -> None:
    """On a busy disk the logs of a topic come long after its metadata, and some clients do not wait for them."""

    async def run(loop: SimulatedLoop) -> None:
        world = World(loop, 1)
        client = await world.begin()

        async def found() -> Coordinator:
            answer = await client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=[KEY]), 4)
            (row,) = answer.coordinators
            return row

        while (row := await found()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            await asyncio.sleep(0.1)  # Of virtual time.
        assert (row.error_code, row.node_id) == (ErrorCode.NONE, 1)
        partitions = world.machines[0].broker.serving.replicas.partitions
        logs = {key: partition for key, partition in partitions.items() if key[0] == GROUP_TOPIC}
        for key in logs:
            del partitions[key]
        row = await found()
        assert (row.error_code, row.node_id, row.host, row.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
        partitions.update(logs)
        for partition in logs.values():
            partition.is_leader = False
        assert (await found()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for partition in logs.values():
            partition.is_leader = True
        assert (await found()).error_code == ErrorCode.NONE
        client.close()

    run_simulation(run, 1)


def test_a_key_of_the_wrong_form_is_refused() -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop, 1)
        client = await world.begin()
        answer = await client.request(FindCoordinatorRequest(key_type=2, coordinator_keys=[KEY]), 6)
        (row,) = answer.coordinators
        assert (row.key, row.error_code) == (KEY, ErrorCode.INVALID_REQUEST)
        client.close()

    run_simulation(run, 1)

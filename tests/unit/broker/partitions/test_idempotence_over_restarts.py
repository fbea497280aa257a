"""A producer without responses retries its batches over several kills of the broker: none is out of order."""

from __future__ import annotations

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.producers.producer_snapshot import REMEMBERED_BATCHES

from .test_slow_produce import HOST, World, produce, rows, simulate

NONE = ErrorCode.NONE


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_what_was_in_flight_is_sent_again(kills: int) -> None:
    batches = [
        build_batch([(1, None, b"v", ())] * 3, producer_id=7, producer_epoch=0, base_sequence=3 * number)
        for number in range(REMEMBERED_BATCHES + 1)
    ]

    async def run(world: World) -> None:
        client = await world.connect()
        for number, batch in enumerate(batches[:-1]):
            assert rows(await client.request(produce(batch), 9)) == [(NONE, 3 * number)]
        for _ in range(kills):
            world.loop.nodes[HOST].kill()
            world.filesystem.crash_process()
            await world.serve()
        client = await world.connect()
        for number, batch in enumerate(batches):
            assert rows(await client.request(produce(batch), 9)) == [(NONE, 3 * number)], f"batch {number}"

    simulate(run)

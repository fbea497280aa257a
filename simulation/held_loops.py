"""A fault that blocks the event loop of a broker, while its process and lease keeper continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.simulation.machines import State

if TYPE_CHECKING:
    from lowtide.simulation.cluster_world import ClusterWorld

SHORTER_S: Final = (0.3, 0.97)
LONGER_S: Final = (1.5, 3.0)
"""Shorter or longer than a session of a second, so that its lease is lost in some cases."""


async def held_loop(cluster: ClusterWorld) -> None:
    """Blocks a broker's loop. For less than a session that costs no lease, if the store is reachable."""
    machine = cluster.pick(State.UP)
    if machine is None or not machine.is_running:
        return
    is_short = cluster.random.random() < 0.6  # noqa: PLR2004
    life, epoch = machine.lives, machine.broker_epoch
    cluster.excuses.begin(machine.broker_id)
    machine.hold()
    await cluster.sleep(*(SHORTER_S if is_short else LONGER_S))
    if machine.lives == life and machine.resume():
        cluster.effects["held loop"] += 1
        await cluster.sleep(0.2, 0.5)
        if epoch and machine.lives == life and machine.broker_epoch != epoch:
            cluster.effects[f"lease lost in a {'short' if is_short else 'long'} hold"] += 1
    cluster.excuses.end(machine.broker_id, after_s=0.5)

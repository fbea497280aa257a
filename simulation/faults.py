"""The faults of a simulated cluster: each begins, lasts for a while, and is undone; several overlap.

A fault counts if it had an effect (`effects`, by kind): a cut link held a message, a stopped process missed something,
a disk operation failed. The cluster's random source chooses machine, duration and severity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from lowtide.simulation.admin_faults import (
    change_replicas,
    flip_leader,
    late_removal,
    leave_while_waiting,
    move_leader,
    topic_created_again,
    upgrade,
)
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.directory_moves import move_between_directories
from lowtide.simulation.disk_faults import (
    LONG_S,
    SHORT_S,
    cold_pages,
    empty_directory,
    failing_disk,
    first_back_with_other_disk,
    foreign_directory,
    full_disk,
    no_descriptors,
    no_room_at_times,
    old_directory,
    slow_disk,
)
from lowtide.simulation.erasure_faults import erasure_truncated, volume_put_back
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_machines import death_is_seen, leaders_are_given, machine_dies, supervisor_dies
from lowtide.simulation.store_restores import store_lost, store_restored
from lowtide.simulation.uncommitted_leaders import leaders_die_uncommitted

if TYPE_CHECKING:
    from lowtide.simulation.cluster_world import ClusterWorld

Fault: TypeAlias = "Callable[[ClusterWorld], Awaitable[None]]"

CLIENTS_HOST: Final = "localhost"


async def kill(cluster: ClusterWorld) -> None:
    """Kills a process (SIGKILL), which returns soon, or after its session has expired."""
    machine = cluster.pick(State.UP)
    if machine is not None:
        cluster.kill(machine)
        cluster.effects["kill"] += 1
        await cluster.stay_down(machine)


async def power_cut(cluster: ClusterWorld) -> None:
    """Cuts the power of a machine."""
    machine = cluster.pick(State.UP)
    if machine is not None:
        cluster.kill(machine, power=True)
        cluster.effects["power cut"] += 1
        await cluster.stay_down(machine)


async def power_cut_of_all(cluster: ClusterWorld) -> None:
    """Cuts the power of all machines at once."""
    cluster.effects["power cut of all"] += 1
    for machine in cluster.machines:
        cluster.kill(machine, power=True)
    for machine in cluster.shuffled():
        await cluster.sleep(0.0, 0.3)
        cluster.start(machine)


async def kill_of_all(cluster: ClusterWorld) -> None:
    """Kills all processes at once."""
    cluster.effects["kill of all"] += 1
    for machine in cluster.machines:
        cluster.kill(machine)
    for machine in cluster.shuffled():
        await cluster.sleep(0.0, 1.5)
        cluster.start(machine)


async def pause(cluster: ClusterWorld) -> None:
    """Stops a process (SIGSTOP), and continues it later (SIGCONT)."""
    machine = cluster.pick(State.UP)
    if machine is not None:
        await _pause(cluster, machine, LONG_S if cluster.random.random() < 0.6 else SHORT_S)  # noqa: PLR2004


async def _pause(cluster: ClusterWorld, machine: Machine, limits: tuple[float, float]) -> None:
    life = machine.lives
    cluster.excuses.begin(machine.broker_id)
    machine.pause()
    await cluster.sleep(*limits)
    if machine.lives == life and machine.resume():
        cluster.effects["pause"] += 1
    cluster.excuses.end(machine.broker_id, after_s=0.5)


async def follower_back_and_leader_dead(cluster: ClusterWorld) -> None:
    """Takes a follower down for longer than its session and kills the leader soon after its return."""
    leader, follower = cluster.leader_and_follower()
    if leader is None or follower is None:
        return
    if cluster.random.random() < 0.5:  # noqa: PLR2004
        await _pause(cluster, follower, (2.0, 4.0))
    else:
        cluster.kill(follower)
        await cluster.sleep(1.5, 3.5)
        cluster.start(follower)
        await cluster.until_up(follower)
    await cluster.sleep(0.0, 0.25 if cluster.random.random() < 0.7 else 1.0)  # noqa: PLR2004
    if leader.state is State.UP:
        cluster.effects["leader dead when a follower was back"] += 1
        cluster.kill(leader, power=cluster.random.random() < 0.3)  # noqa: PLR2004
        await cluster.stay_down(leader)


async def fast_restart(cluster: ClusterWorld) -> None:
    """Restarts a process before its session expires, after a kill or a power cut."""
    machine = cluster.pick(State.UP)
    if machine is not None:
        cluster.kill(machine, power=cluster.random.random() < 0.5)  # noqa: PLR2004
        cluster.effects["fast restart"] += 1
        await cluster.sleep(0.0, 0.2)
        cluster.start(machine)


async def cut_link(cluster: ClusterWorld) -> None:
    """Cuts a link between two brokers, in one direction or both."""
    first, second = cluster.shuffled()[:2] if len(cluster.machines) > 1 else (None, None)
    if first is not None and second is not None:
        await _cut(cluster, first.host, second.host, both_ways=cluster.random.random() < 0.5, kind="link cut")  # noqa: PLR2004


async def cut_off(cluster: ClusterWorld) -> None:
    """Cuts off a broker from the others, sometimes from clients too, but not from the metadata store."""
    machine = cluster.random.choice(cluster.machines)
    others = [other.host for other in cluster.machines if other is not machine]
    with_clients = cluster.random.random() < 0.4  # noqa: PLR2004
    if with_clients:
        others.append(CLIENTS_HOST)
        cluster.excuses.begin(machine.broker_id)
    network, before = cluster.loop.network, cluster.loop.network.held_count
    both_ways = cluster.random.random() < 0.6  # noqa: PLR2004
    cluster.note(f"{machine.host} is cut off from {', '.join(others)}{'' if both_ways else ', one way'}")
    for host in others:
        network.cut(machine.host, host, both_ways=both_ways)
    await cluster.sleep(*LONG_S)
    cluster.effects["cut off"] += network.held_count > before
    for host in others:
        network.heal(machine.host, host)
    cluster.note(f"{machine.host} is reached again")
    if with_clients:
        cluster.excuses.end(machine.broker_id, after_s=2.0)


async def _cut(cluster: ClusterWorld, source: str, target: str, *, both_ways: bool, kind: str) -> None:
    network, before = cluster.loop.network, cluster.loop.network.held_count
    cluster.note(f"cut from {source} to {target}{', and back' if both_ways else ''}")
    network.cut(source, target, both_ways=both_ways)
    await cluster.sleep(*(LONG_S if cluster.random.random() < 0.6 else SHORT_S))  # noqa: PLR2004
    cluster.effects[kind] += network.held_count > before
    network.heal(source, target)
    cluster.note(f"healed between {source} and {target}")


async def slow_network(cluster: ClusterWorld) -> None:
    """Delays messages so much that connections overtake each other."""
    network = cluster.loop.network
    before = network.delay_range_ms
    network.delay_range_ms = (0.1, cluster.random.choice((20.0, 60.0, 150.0)))
    cluster.excuse_all()
    cluster.note(f"the network is slow: {network.delay_range_ms} ms")
    await cluster.sleep(*LONG_S)
    network.delay_range_ms = before
    cluster.note("the network is quick again")
    cluster.pardon_all(after_s=1.0)
    cluster.effects["slow network"] += 1


async def connections_torn(cluster: ClusterWorld) -> None:
    """Resets the connections of a broker with the others."""
    machine = cluster.pick(State.UP)
    if machine is None or machine.node is None:
        return
    torn = [transport for transport in machine.node.transports if transport.peer_host != CLIENTS_HOST]
    for transport in torn:
        if cluster.random.random() < 0.7:  # noqa: PLR2004
            cluster.effects["connection torn"] += 1
            transport.on_reset()
    if torn:
        cluster.note(f"connections of {machine.host} are torn")


async def cut_from_store(cluster: ClusterWorld) -> None:
    """Cuts a broker's link to the metadata store, in one direction or both."""
    machine = cluster.random.choice(cluster.machines)
    cluster.excuses.begin(machine.broker_id)
    for link in (machine.link,):
        link.requests_are_cut = cluster.random.random() < 0.6  # noqa: PLR2004
        link.answers_are_cut = not link.requests_are_cut or cluster.random.random() < 0.5  # noqa: PLR2004
    cluster.note(
        f"{machine.host} is cut from the store, requests {machine.link.requests_are_cut}, answers "
        f"{machine.link.answers_are_cut}"
    )
    await cluster.sleep(*LONG_S)
    if cluster.random.random() < 0.5:  # noqa: PLR2004
        machine.link.break_watches()
    machine.link.requests_are_cut = machine.link.answers_are_cut = False
    cluster.note(f"{machine.host} reaches the store")
    cluster.excuses.end(machine.broker_id, after_s=0.5)


async def store_trouble(cluster: ClusterWorld) -> None:
    """Loses or delays requests of a broker to the store, or their responses."""
    machine = cluster.random.choice(cluster.machines)
    machine.link.loss = cluster.random.choice((0.1, 0.3, 0.6))
    cluster.note(f"requests of {machine.host} to the store are lost: {machine.link.loss}")
    await cluster.sleep(*LONG_S)
    machine.link.loss = 0.0
    cluster.note(f"requests of {machine.host} to the store arrive")


async def old_image(cluster: ClusterWorld) -> None:
    """Delays a broker's watch of the store."""
    machine = cluster.random.choice(cluster.machines)
    machine.link.watch_lag_ms = (0.0, cluster.random.choice((50.0, 300.0, 1500.0)))
    cluster.note(f"watches of {machine.host} lag: {machine.link.watch_lag_ms}")
    await cluster.sleep(*LONG_S)
    machine.link.watch_lag_ms = (0.0, 1.0)
    cluster.effects["watch that lags"] += 1
    cluster.note(f"watches of {machine.host} are quick again")


async def store_away(cluster: ClusterWorld) -> None:
    """Stops the metadata store for a while."""
    cluster.excuse_all()
    cluster.note("the store is away")
    cluster.shared.stop()
    await cluster.sleep(0.05, 3.0)
    cluster.shared.start()
    cluster.note("the store is back")
    cluster.effects["store away"] += 1
    cluster.pardon_all(after_s=1.0)


async def wrong_clock(cluster: ClusterWorld) -> None:
    """Moves a wall clock by up to an hour."""
    machine = cluster.random.choice(cluster.machines)
    machine.clock.set_wall(cluster.random.randint(-3_600_000, 3_600_000))
    cluster.note(f"the wall clock of {machine.host} is off by {machine.clock.wall_offset_ms} ms")
    cluster.effects["wrong clock"] += machine.state is State.UP


async def controlled_shutdown(cluster: ClusterWorld) -> None:
    """Stops a process in an orderly way (SIGTERM), and starts a new one some time later."""
    machine = cluster.pick(State.UP)
    if machine is None:
        return
    cluster.excuses.begin(machine.broker_id)
    life = machine.lives
    machine.stop()
    await cluster.sleep(0.5, 4.0)
    cluster.excuses.end(machine.broker_id)
    if machine.lives == life:
        cluster.effects["controlled shutdown"] += machine.state is State.DOWN
        cluster.kill(machine)
        await cluster.stay_down(machine)


async def late_shutdown(cluster: ClusterWorld) -> None:
    """Stops a broker that is cut off and sees the store late: the others drop it long before it ends."""
    machine = cluster.pick(State.UP)
    if machine is None:
        return
    cluster.excuses.begin(machine.broker_id)
    life = machine.lives
    cluster.cut_off(machine)
    machine.link.watch_lag_ms = (500.0, 1500.0)
    cluster.note(f"{machine.host} is cut off from the other brokers, and its watches lag")
    machine.stop()
    await cluster.sleep(*LONG_S)
    cluster.reach_again(machine)
    machine.link.watch_lag_ms = (0.0, 1.0)
    cluster.note(f"{machine.host} is reached again")
    cluster.excuses.end(machine.broker_id)
    if machine.lives == life:
        cluster.effects["late shutdown"] += machine.state is State.DOWN
        cluster.kill(machine)
        await cluster.stay_down(machine)


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


FAULTS: Final[dict[str, tuple[Fault, int]]] = {
    "kill": (kill, 4),
    "power cut": (power_cut, 4),
    "power cut of all": (power_cut_of_all, 1),
    "kill of all": (kill_of_all, 1),
    "pause": (pause, 6),
    "follower back and leader dead": (follower_back_and_leader_dead, 8),
    "fast restart": (fast_restart, 4),
    "link cut": (cut_link, 4),
    "cut off": (cut_off, 4),
    "slow network": (slow_network, 2),
    "connections torn": (connections_torn, 3),
    "cut from store": (cut_from_store, 4),
    "store trouble": (store_trouble, 3),
    "old image": (old_image, 4),
    "store away": (store_away, 2),
    "wrong clock": (wrong_clock, 1),
    "slow disk": (slow_disk, 2),
    "full disk": (full_disk, 2),
    "no room at times": (no_room_at_times, 3),
    "failing disk": (failing_disk, 2),
    "controlled shutdown": (controlled_shutdown, 3),
    "leader move": (move_leader, 3),
    "leader flip": (flip_leader, 4),
    "replicas": (change_replicas, 2),
    "replica leaves while it waits": (leave_while_waiting, 3),
    "topic created again": (topic_created_again, 2),
    "upgrade": (upgrade, 3),
    "empty directory": (empty_directory, 2),
    "old directory": (old_directory, 2),
    "foreign directory": (foreign_directory, 1),
    "first back with other disk": (first_back_with_other_disk, 2),
    "leaders die uncommitted": (leaders_die_uncommitted, 8),
    "held loop": (held_loop, 3),
    "no descriptors": (no_descriptors, 3),
    "store restored": (store_restored, 1),
    "cold pages": (cold_pages, 3),
}
"""The faults with their weights."""

AGAINST_ERASURES: Final[dict[str, tuple[Fault, int]]] = {
    "volume put back": (volume_put_back, 8),
    "erasure truncated": (erasure_truncated, 8),
}
"""Faults that also strike runs with only erasures."""

WHERE_NAMED: Final[dict[str, tuple[Fault, int]]] = {
    "moves between directories": (move_between_directories, 20),
    "machine dies": (machine_dies, 8),
    "supervisor dies": (supervisor_dies, 8),
    "death is seen": (death_is_seen, 8),
    "leaders are given": (leaders_are_given, 16),
    "late shutdown": (late_shutdown, 8),
    "late removal": (late_removal, 8),
    "store lost": (store_lost, 1),
}
"""Faults that need a special cluster or special runs: they strike only if named."""

ALONE: Final = frozenset({"store restored", "store lost"})
"""Faults that are an operator's work on all brokers: they run alone."""

"""A broker as a process: on real ports, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.ports import real_ports
from lowtide.broker.lifecycle.start_lines import warn_of_unresolved, warn_without_compiled_module, with_ports
from lowtide.metadata.etcd_address import EtcdAddress
from lowtide.runtime.http_site import Site
from lowtide.runtime.long_lived import LongLived
from lowtide.runtime.process import environment
from lowtide.runtime.service_manager import ServiceManager
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.supervisor.child import SupervisedBroker
    from lowtide.replication.leader_balance import LeaderMove


async def run_broker(
    config: BrokerConfig,
    *,
    logger: Any,
    version: str,
    etcd: EtcdAddress | None = None,
    console: Callable[[Broker], Site] | None = None,
    supervisor: SupervisedBroker | None = None,
) -> int:
    """Runs a broker until SIGTERM or SIGINT and then stops it gracefully; a second signal stops waiting for clients.

    Returns the exit code: 0 stopped, 1 failed. `etcd` is the address of the metadata store, if it is etcd. `console`
    creates the console's site at the first visit. With a `supervisor`, it provides the ports and stops the broker;
    further signals are ignored then, because a service manager may signal all processes of a service. Errors: those of
    `Broker.start`.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    long_lived = LongLived()
    long_lived.watch()
    ports = real_ports(loop, etcd) if supervisor is None else supervisor.ports(loop)
    broker: Broker = Broker(
        config, ports, logger, on_failed=stopping.set, sites=[] if console is None else [lambda: console(broker)]
    )

    def on_signal() -> None:
        if stopping.is_set() and supervisor is None:
            broker.hurry()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    lines = TaskRegistry(
        lambda name, error: logger.error("task failed", task=name, error=f"{type(error).__name__}: {error}")
    )
    if supervisor is not None:
        lines.spawn(
            supervisor.follow(stopping.set, broker.hurry, partial(_own_page, broker), partial(give, broker)),
            name="supervisor",
        )
    warn_without_compiled_module(logger)
    await broker.start()
    address = broker.address
    long_lived.freeze()
    logger.info(
        "ready",
        address=address,
        version=version,
        listeners=with_ports(config.listeners, broker.ports),
        advertised=with_ports(config.advertised_listeners, broker.ports),
        node_id=config.node_id,
        http=list(broker.http_addresses),
        log_dirs=list(config.log_dirs),
    )
    lines.spawn(warn_of_unresolved(config.advertised_listeners, logger), name="advertised names")
    manager = ServiceManager(environment())
    manager.ready(f"serving clients at {address}")
    if supervisor is not None:
        supervisor.serves(address, broker.ports)
    await stopping.wait()
    reason = "failure" if broker.failed else "signal"
    logger.info("stopping", reason=reason)
    manager.stopping(f"stopping: {reason}")
    await broker.stop()
    await lines.cancel_all()
    manager.close()
    return 1 if broker.failed else 0


def give(broker: Broker, move: LeaderMove) -> None:
    """Gives the leadership of a partition to another broker of the machine, as its supervisor orders."""
    if broker.serving is not None:
        broker.serving.give(move)


async def _own_page(broker: Broker, form: str) -> bytes:
    """Returns the broker's own metrics page. Empty before it serves."""
    from lowtide.broker.metrics.collector import PageKind  # noqa: PLC0415 - rarely needed
    from lowtide.broker.metrics.exposition import Format  # noqa: PLC0415

    serving = broker.serving
    if serving is None:
        return b""
    collector = await asyncio.to_thread(lambda: serving.metrics)  # The first call has slow imports.
    return b"".join(await collector.page(PageKind(Format(form), is_own=True)))

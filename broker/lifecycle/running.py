"""A broker as a process: on real ports, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.ports import real_ports
from lowtide.metadata.etcd_address import EtcdAddress
from lowtide.runtime.collector_pause import CollectorPause
from lowtide.runtime.long_lived import LongLived


async def run_broker(
    config: BrokerConfig, *, logger: Any, version: str, etcd: EtcdAddress | None = None, ready: Callable[[str], None] | None = None
) -> int:
    """Run a broker until SIGTERM or SIGINT, then stop it in good order; a second signal hurries that.

    Returns the exit code: 0 stopped, 1 failed. `etcd`: where it is, if the metadata are there.

    Errors: those of `Broker.start`.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    long_lived = LongLived()
    ports = real_ports(loop, etcd)
    ports = msgspec.structs.replace(ports, collector_pause=CollectorPause(ports.clock))
    broker = Broker(config, ports, logger, on_failed=stopping.set, on_partition_made=long_lived.note_made)

    def on_signal() -> None:
        if stopping.is_set():
            broker.hurry()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await broker.start()
    address = broker.address
    long_lived.freeze()
    logger.info(
        "ready",
        address=address,
        version=version,
        listeners=[f"{each.name}://{each.host}:{each.port or broker.ports.get(each.name, 0)}" for each in config.listeners],
        node_id=config.node_id,
        log_dirs=list(config.log_dirs),
    )
    if ready is not None:
        ready(address)
    await stopping.wait()
    logger.info("stopping", reason="failure" if broker.failed else "signal")
    await broker.stop()
    return 1 if broker.failed else 0

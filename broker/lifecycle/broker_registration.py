"""A broker's membership in its cluster: its registration, its session timeouts, and how it leaves.

A broker that stops hands over its leaderships first: it records the shutdown in the metadata, the controller moves
them, and the broker waits. It does not wait for moves that cannot happen: a partition without another in-sync replica
stays, and a single broker does not wait.

Sources: KIP-631, KIP-841; Kafka's `BrokerServer.shutdown`, which has the same time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.lifecycle.ports import Ports
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.lease_keeper import keeper_times
from lowtide.metadata.records import NEWEST_LEVEL, Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import MetadataStore
from lowtide.replication.elections import is_relieved
from lowtide.runtime.clock import Clock
from lowtide.runtime.tasks import TaskRegistry

IMAGE_AGE_PART: Final = 0.8
"""The maximum age of a broker's image, as a part of `replica.lag.time.max.ms`."""

HAND_OVER_LIMIT_MS: Final = 300_000
"""The time that a stopping broker waits for its leaderships to move. Source: Kafka's `BrokerServer.shutdown`."""

ETCD_PLACE: Final = "etcd at "
"""The prefix of `EtcdAddress.text`."""

_LOOK_S: Final = 0.02


def session_settings(config: BrokerConfig, *, prefix: bytes, shared: bool) -> SessionSettings:
    """Returns the settings of the broker's session. `shared`: other brokers change the metadata store too."""
    return SessionSettings(
        prefix=prefix,
        time_to_live_ms=config.broker_session_timeout_ms,
        keep_alive_ms=config.broker_heartbeat_interval_ms,
        registration_timeout_ms=config.initial_broker_registration_timeout_ms,
        image_age_ms=int(IMAGE_AGE_PART * config.replica_lag_time_max_ms) if shared else 0,
    )


def make_session(
    config: BrokerConfig,
    ports: Ports,
    store: MetadataStore,
    tasks: TaskRegistry,
    reconcile: Callable[[MetadataImage], ChangePlan],
) -> MetadataSession:
    """Creates the broker's session, not yet opened. Errors: OSError if no thread for the lease keeper can start."""
    settings = session_settings(config, prefix=ports.metadata_prefix, shared=bool(ports.shared_metadata))
    times = keeper_times(settings.time_to_live_ms, settings.keep_alive_ms)
    session_ports = SessionPorts(
        store=store,
        clock=ports.clock,
        tasks=tasks,
        random=ports.random,
        keeper=ports.make_lease_keeper(times) if ports.make_lease_keeper is not None else None,
    )
    return MetadataSession(session_ports, broker_id=config.node_id, settings=settings, reconcile=reconcile)


async def warn_without_raft_log(store: MetadataStore, place: str, log: Any) -> None:
    """Warns if an etcd does not report the length of its raft log, which protects against a restored backup.

    Errors: UnavailableError.
    """
    if place.startswith(ETCD_PLACE) and await store.raft_surplus() is None:
        log.warning(
            "etcd does not let this user read its status: a broker that was down cannot detect a restore from a "
            "snapshot",
            metadata=place,
        )


def registration_of(config: BrokerConfig, advertised: tuple[Listener, ...]) -> BrokerRegistration:
    """Returns the broker's registration; `advertised` are its listeners with the bound ports."""
    level = NEWEST_LEVEL if config.reports_log_starts else 0
    return BrokerRegistration(advertised, config.broker_rack, config.inter_broker_listener, level)


async def hand_over(session: MetadataSession, clock: Clock, log: Any) -> None:
    """Returns when other brokers lead the partitions that this one led, as far as possible.

    Stops waiting when this broker is fenced, because it then leads nothing, and after `HAND_OVER_LIMIT_MS`.
    """
    if session.is_fenced or len(session.image.brokers) <= 1:
        return
    session.reports.begin_controlled_shutdown()
    give_up_ms = clock.monotonic_ms() + HAND_OVER_LIMIT_MS
    seen = None
    while not session.is_fenced:
        image = session.image
        if image is not seen:
            seen = image
            known = image.brokers.get(session.broker_id)
            if known is not None and known.in_controlled_shutdown and is_relieved(image, session.broker_id):
                return
        if clock.monotonic_ms() >= give_up_ms:
            log.warning("timed out handing over leaderships", waited_ms=HAND_OVER_LIMIT_MS)
            return
        await asyncio.sleep(_LOOK_S)

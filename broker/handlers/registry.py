"""Finds the handler modules and builds the handlers: the list that ApiVersions, the version check and the docs use.

Each module of this package with a function `handler` serves one API. The types of the function's parameters tell which
parts of the broker it needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

from lowtide.broker import handlers as plain
from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.administration.delegation_token_administrator import TokenAdministrator
from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.administration.spread import Spread
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.guards.audited_requests import audited
from lowtide.broker.guards.guard import behind_guard
from lowtide.broker.handlers import share as of_shares
from lowtide.broker.handlers.share.registry import ShareParts, switched
from lowtide.broker.handlers.share.share_access import ShareAccess
from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.ledger.erasure_parts import ErasureParts
from lowtide.broker.ledger.search_eraser import SearchEraser
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.network.routing.dispatcher import Dispatcher
from lowtide.broker.network.routing.routes import HandlerSpec, Route, VersionRange
from lowtide.broker.observation.health import BrokerObservation, Vitals
from lowtide.broker.observation.history import LogHistory
from lowtide.broker.partitions.replica_searches import SearchParts
from lowtide.broker.retention.explained import Explanations
from lowtide.broker.retention.log_retention import Retention
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey


class Coordinators(NamedTuple):
    """The parts of a broker that keep internal topics; `shares` is None if share groups are off."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareParts | None
    erasures: ErasureParts


class HandlerParts(NamedTuple):
    """The parts of a broker that its handlers use."""

    broker: BrokerContext
    topics: TopicAdministrator
    configs: ConfigAdministrator
    coordinators: Coordinators
    retention: Retention
    observed: BrokerObservation
    dispatcher: Dispatcher

    def by_type(self) -> dict[Any, object]:
        """Returns the parts by the types of the parameters of `handler` functions."""
        broker, dispatcher = self.broker, self.dispatcher
        groups, transactions, shares, erasures = self.coordinators
        forwarder = self.topics.forwarder
        peers = None if forwarder is None else forwarder.peers
        spread = Spread(broker, peers)
        parts: dict[Any, object] = {
            AclAdministrator: AclAdministrator(broker, spread),
            BrokerContext: broker,
            Callable[[], MetadataImage]: lambda: broker.metadata.image,
            ConfigAdministrator: self.configs,
            ErasureLedger: erasures.ledger,
            Explanations: Explanations(broker, self.retention),
            GroupCoordinator: groups,
            LogHistory: self.observed.history,
            Mapping[ApiKey, VersionRange]: dispatcher.advertised,
            Mapping[tuple[int, int], Route | None]: dispatcher.routes,
            MarkerWriter: transactions.writer,
            OffsetsTopic | None: None if shares is None else shares.coordinator.topic,
            PartitionAdministrator: PartitionAdministrator(broker),
            PeerClients | None: peers,
            SearchEraser: erasures.eraser,
            SearchParts: erasures.searching,
            Spread: spread,
            TokenAdministrator: TokenAdministrator(broker, spread),
            TopicAdministrator: self.topics,
            TransactionCoordinator: transactions,
            Vitals: self.observed.vitals,
        }
        if shares is not None:
            parts[ShareAccess] = ShareAccess(broker, shares.partitions)
            parts[ShareCoordinator] = shares.coordinator
            parts[ShareOffsets] = ShareOffsets(groups, shares.persister)
        return parts


def handlers(parts: HandlerParts) -> list[HandlerSpec]:
    """Returns all handlers, each behind its guard, with its forwarding and its audit lines."""
    broker, by_type = parts.broker, parts.by_type()
    specs = _built(plain, by_type)
    forwarder = parts.topics.forwarder
    if forwarder is not None:
        specs = [forwarder.wrap(spec) for spec in specs]
    specs = [audited(behind_guard(spec, broker), broker) for spec in specs]
    if parts.coordinators.shares is not None:
        specs += [switched(behind_guard(spec, broker), broker) for spec in _built(of_shares, by_type)]
    return specs


def _built(package: ModuleType, parts: Mapping[Any, object]) -> list[HandlerSpec]:
    names = [each.name for each in pkgutil.iter_modules(package.__path__) if not each.ispkg]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in sorted(names)]
    return [_handler(module.handler, parts) for module in modules if hasattr(module, "handler")]


def _handler(make: Callable[..., HandlerSpec], parts: Mapping[Any, object]) -> HandlerSpec:
    hints = get_type_hints(make)
    del hints["return"]
    return make(**{name: parts[kind] for name, kind in hints.items()})

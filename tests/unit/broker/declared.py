"""What the handlers of a broker declare. The parts behind them do nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import msgspec

from lowtide.broker.handlers.registry import Coordinators, HandlerParts, handlers
from lowtide.broker.handlers.share.registry import ShareParts
from lowtide.broker.network.routing.dispatcher import Dispatcher
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.protocol.api_keys import ApiKey


def registry() -> Dispatcher:
    """Returns a dispatcher with all handlers, as a broker registers them."""
    made = Dispatcher(spawn=MagicMock(), maximum_versions={})
    made.register(all_specs(made))
    return made


def all_specs(dispatcher: Dispatcher) -> list[HandlerSpec]:
    shares = ShareParts(MagicMock(), MagicMock(), MagicMock())
    coordinators = Coordinators(MagicMock(), MagicMock(), shares, MagicMock())
    others = [MagicMock() for _ in range(4)]
    parts = (others[0], MagicMock(forwarder=None), others[1], coordinators, *others[2:], dispatcher)
    return handlers(HandlerParts(*parts))


SPECS = {spec.key: spec for spec in all_specs(Dispatcher(spawn=MagicMock(), maximum_versions={}))}


def spec_of(key: ApiKey, **handlers: Any) -> HandlerSpec:
    """Returns what an API declares, with another handler."""
    return msgspec.structs.replace(SPECS[key], **({"handle": None, "handle_later": None, "joint": None} | handlers))

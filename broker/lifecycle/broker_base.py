"""The parts of a broker that exist before it opens anything: configuration, ports, tasks, log."""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.descriptors import DescriptorBudget
from lowtide.broker.lifecycle.image_lines import UncleanElections
from lowtide.broker.lifecycle.ports import Ports
from lowtide.runtime.http_site import SiteLoader
from lowtide.runtime.tasks import TaskRegistry


class BrokerBase(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all other parts of a broker use."""

    configs: BrokerConfigs
    descriptors: DescriptorBudget
    ports: Ports
    tasks: TaskRegistry
    log: Any
    unclean_elections: UncleanElections
    sites: tuple[SiteLoader, ...] = ()

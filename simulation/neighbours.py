"""A broker that shares its simulated machine with others under one supervisor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from lowtide.broker.lifecycle.ports import Neighbours, Ports
from lowtide.replication.leader_balance import BrokerLoad
from lowtide.runtime.thread_usage import ReadUsage, no_usage
from lowtide.simulation.machines import Machine, State


class Beside:
    """The other brokers of a machine (`Neighbours`)."""

    def __init__(
        self, machines: Sequence[Machine], on_report: Callable[[BrokerLoad], None] = lambda _load: None
    ) -> None:
        self._machines = machines
        self.report = on_report

    @property
    def machine(self) -> Sequence[int]:
        return [each.broker_id for each in self._machines]

    def away(self) -> Sequence[int]:
        return [each.broker_id for each in self._machines if each.state is not State.UP]

    async def pages(self, _form: str) -> Sequence[tuple[int, bytes]]:
        return ()


class SharedMachine(Machine):
    """A machine with several brokers, once it has neighbours."""

    def __init__(self, **parts: Any) -> None:
        """Starts without neighbours, and has those that are set from the next start. `parts` are those of `Machine`."""
        super().__init__(**parts)
        self.neighbours: Neighbours | None = None
        self.read_usage: ReadUsage = no_usage

    def _ports(self) -> Ports:
        return replace(super()._ports(), neighbours=self.neighbours, read_usage=self.read_usage)

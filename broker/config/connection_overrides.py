"""How many connections single addresses may have: `max.connections.per.ip.overrides`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.key import ImpossibleTogetherError, Value
from lowtide.runtime.addresses import normal_address

OVERRIDES: Final = "max.connections.per.ip.overrides"
PER_IP: Final = "max.connections.per.ip"


def parse_overrides(values: Mapping[str, Value]) -> dict[str, int]:
    """The numbers by address of `max.connections.per.ip.overrides`. Errors: ImpossibleTogetherError."""
    overrides = {}
    for entry in filter(None, (part.strip() for part in str(values[OVERRIDES] or "").split(","))):
        address, _, number = entry.rpartition(":")
        normal = normal_address(address.strip("[]"))
        if normal is None:
            message = f"{OVERRIDES}={entry} is not possible: {address} is no IP address"
            raise ImpossibleTogetherError(message, OVERRIDES)
        overrides[normal] = int(number)
    if values[PER_IP] == 0 and not overrides:
        message = f"{PER_IP}=0 is not possible without {OVERRIDES}: no client could connect"
        raise ImpossibleTogetherError(message, PER_IP, OVERRIDES)
    return overrides

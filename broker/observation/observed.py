"""What handlers show of a broker that is in none of its other parts."""

from __future__ import annotations

import msgspec

from lowtide.broker.observation.health import Vitals
from lowtide.broker.observation.history import LogHistory


class Observed(msgspec.Struct, frozen=True):
    """The parts, of one broker."""

    history: LogHistory
    vitals: Vitals

"""Transactions in a coordinator's log: a record is pending until a marker ends its transaction."""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.protocol.types import ProducerId


class InTransaction(msgspec.Struct, frozen=True):
    """A record of a producer's open transaction, which is not valid yet."""

    producer_id: ProducerId
    change: Any


class EndMarker(msgspec.Struct, frozen=True):
    """A marker: the producer's pending records become valid or are dropped."""

    producer_id: ProducerId
    is_commit: bool

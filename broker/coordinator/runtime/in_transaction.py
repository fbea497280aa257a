"""What the log of a coordinator says of transactions: a record in one is pending until a marker says how that has ended."""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.protocol.types import ProducerId


class InTransaction(msgspec.Struct, frozen=True):
    """A record of a producer's open transaction: what it says doesn't hold yet."""

    producer_id: ProducerId
    change: Any


class TransactionEnded(msgspec.Struct, frozen=True):
    """A marker: the producer's records that are pending hold from now on, or never will."""

    producer_id: ProducerId
    is_commit: bool

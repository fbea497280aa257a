"""The parts of a broker that search for erasures and keep their ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.ledger.erasure_marks import ErasureMarks
from lowtide.broker.ledger.lost_erasures import LostErasures
from lowtide.broker.ledger.search_eraser import SearchEraser
from lowtide.broker.ledger.standing_erasures import StandingErasures
from lowtide.broker.partitions.replica_searches import SearchParts

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.network.peer_client import PeerClients
    from lowtide.broker.partitions.log_searches import LogSearches


class ErasureParts(NamedTuple):
    """The parts of a broker that search for erasures and keep their ledger."""

    ledger: ErasureLedger
    searching: SearchParts
    eraser: SearchEraser
    lost: LostErasures
    standing: StandingErasures


def make_erasure_parts(
    broker: BrokerContext, ledger: ErasureLedger, searches: LogSearches, peers: PeerClients | None
) -> ErasureParts:
    """Creates the parts; `peers` is None for a broker without a cluster."""
    searching = SearchParts(
        broker.replicas, searches, broker.metadata, peers, broker.clock, broker.random, broker.tasks
    )
    marks = ErasureMarks(broker)
    eraser = SearchEraser(broker, ledger, marks)
    lost = LostErasures(broker, ledger, marks, searching)
    return ErasureParts(ledger, searching, eraser, lost, StandingErasures(broker, ledger, searching, eraser))

"""The parts of a log when it is opened: by the loader from what a folder holds, or new."""

from __future__ import annotations

import msgspec

from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.log.leader_epochs import LeaderEpochs
from lowtide.storage.log.producer_state import ProducerStateManager
from lowtide.storage.log.segment import Segment
from lowtide.storage.log.segment_files import SegmentCache
from lowtide.storage.log.snapshots import ProducerSnapshots
from lowtide.storage.log.transaction_index import TransactionIndex


class LogParts(msgspec.Struct):
    """The parts of one log."""

    filesystem: FileSystem
    directory: str
    segments: list[Segment]
    leader_epochs: LeaderEpochs
    producer_state: ProducerStateManager
    snapshots: ProducerSnapshots
    transaction_index: TransactionIndex
    cache: SegmentCache

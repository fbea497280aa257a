"""Names of the files of a segment: the base offset in 20 digits, then a suffix.

`.txnindex`, `.snapshot` and our own `.keyfilter` belong to a segment, too, and are removed with it. Source: Kafka's
LogFileUtils.
"""

from __future__ import annotations

from typing import Final

from lowtide.protocol.types import Offset

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
KEY_FILTER_SUFFIX: Final = ".keyfilter"
DELETED_SUFFIX: Final = ".deleted"

SEGMENT_SUFFIXES: Final = (
    LOG_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    KEY_FILTER_SUFFIX,
)
"""All files of a segment in the order of their removal: without its `.log` the others are orphans, which a start
removes.
"""


OFFSET_DIGITS: Final = 20


def offset_name(offset: Offset) -> str:
    """Returns the 20 digits that begin the name of a segment's or snapshot's file."""
    return f"{offset:0{OFFSET_DIGITS}d}"

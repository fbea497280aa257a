"""What brokers remember of lost metadata: their log directories, and the newest of their copies of the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.metadata_copy import CopyError, MetadataCopy, decode_copy
from lowtide.metadata.records import HistoryRecord, MetadataCorruptError, decode
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import BrokerId  # Read at run time, by msgspec.
from lowtide.runtime.json_text import decode_json
from lowtide.storage.directory.directory_survey import SurveyedDirectory  # Likewise.

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.metadata_copy import Row

FACTS_FORMAT: Final = 0
_TEXT: Final = "latin-1"


class RecoveryError(Exception):
    """Nothing can be planned; in a sentence."""


class BrokerFacts(msgspec.Struct, frozen=True):
    """The contents of one broker's log directories. `copy` is their newest copy of the metadata, as ISO 8859-1.

    `crc` is the CRC-32C of the rest, as a file has it.
    """

    format: int
    broker_id: BrokerId
    cluster_id: str
    directories: tuple[SurveyedDirectory, ...]
    copy: str
    crc: int = 0

    def read_copy(self) -> MetadataCopy:
        """Returns the broker's copy of the metadata, decoded. Errors: RecoveryError if it is damaged."""
        try:
            return decode_copy(self.copy.encode(_TEXT))
        except (CopyError, UnicodeEncodeError) as error:
            raise RecoveryError(f"broker {self.broker_id}: {error}") from error


def facts_of(directories: Sequence[SurveyedDirectory], copies: Sequence[bytes]) -> BrokerFacts:
    """Returns the facts of one broker. Errors: RecoveryError."""
    if len({(each.cluster_id, each.node_id) for each in directories}) != 1:
        raise RecoveryError(
            f"these are not the log directories of one broker: {', '.join(each.path for each in directories)}"
        )
    readable = []
    for content in copies:
        try:
            readable.append((decode_copy(content).revision, content))
        except CopyError:
            continue
    if not readable:
        paths = ", ".join(each.path for each in directories)
        raise RecoveryError(f"no copy of the metadata is in {paths}: no broker of this version has run there")
    _, newest = max(readable)
    first = directories[0]
    return BrokerFacts(FACTS_FORMAT, first.node_id, first.cluster_id, tuple(directories), newest.decode(_TEXT))


def encode_facts(facts: BrokerFacts) -> bytes:
    """Returns a file's content."""
    return msgspec.json.encode(msgspec.structs.replace(facts, crc=_crc(facts)))


def _crc(facts: BrokerFacts) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(facts, crc=0)))


def decode_facts(content: bytes, path: str) -> BrokerFacts:
    """Parses a file's content. Errors: RecoveryError."""
    try:
        facts = decode_json(content, BrokerFacts)
    except ValueError as error:
        raise RecoveryError(f"{path} is no file of `lowtide metadata export`: {error}") from error
    if facts.format != FACTS_FORMAT:
        raise RecoveryError(f"{path} has format {facts.format}, this Lowtide reads {FACTS_FORMAT}")
    if facts.crc != _crc(facts):
        raise RecoveryError(f"{path} is damaged: its CRC isn't that of its content")
    return msgspec.structs.replace(facts, crc=0)


def newest_copy(facts: Sequence[BrokerFacts]) -> tuple[BrokerId, MetadataCopy]:
    """Returns the newest copy of the newest history, and its broker. Errors: RecoveryError."""
    if not facts:
        raise RecoveryError("nothing is given to bring the metadata forward from")
    if len({each.cluster_id for each in facts}) > 1:
        raise RecoveryError(
            f"the brokers are of several clusters: {', '.join(sorted({each.cluster_id for each in facts}))}"
        )
    ids = [each.broker_id for each in facts]
    if len(set(ids)) < len(ids):
        raise RecoveryError(f"a broker is given twice: {', '.join(map(str, sorted(ids)))}")
    copies = {each.broker_id: each.read_copy() for each in facts}
    earlier = {history_of(copy.rows).previous_id for copy in copies.values()}
    newest = {copy.history_id for copy in copies.values()} - earlier
    if len(newest) != 1:
        raise RecoveryError(
            _differing({broker_id: copy for broker_id, copy in copies.items() if copy.history_id in newest} or copies)
        )
    candidates = [(copy.revision, -broker_id) for broker_id, copy in copies.items() if copy.history_id in newest]
    broker_id = -max(candidates)[1]
    return broker_id, copies[broker_id]


def _differing(copies: Mapping[BrokerId, MetadataCopy]) -> str:
    """Returns a sentence about which broker knows which history, and which is probably older."""
    by_history: dict[str, list[BrokerId]] = {}
    for broker_id, copy in sorted(copies.items()):
        by_history.setdefault(copy.history_id, []).append(broker_id)
    reached = {
        history: max(copies[broker_id].revision for broker_id in brokers) for history, brokers in by_history.items()
    }
    topics = {
        history: max(sum(key.startswith(keys.TOPICS) for key in copies[broker_id].rows) for broker_id in brokers)
        for history, brokers in by_history.items()
    }
    known = "; ".join(
        f"{history} of broker {', '.join(map(str, brokers))}, up to revision {reached[history]}, with "
        f"{topics[history]} topics"
        for history, brokers in by_history.items()
    )
    older = min(reached, key=lambda history: (reached[history], history))
    brokers = ", ".join(map(str, by_history[older]))
    return (
        f"the log directories are of different histories of the metadata ({known}); leave out the brokers of the older "
        f"one. That is {older} (broker {brokers}), which is at the lower revision, unless an empty store was begun "
        "later: that one has the lower revision, and few topics"
    )


def history_of(rows: Mapping[bytes, Row]) -> HistoryRecord:
    """Returns the history of a store or a copy with these keys; an empty one if it has none that can be read."""
    row = rows.get(keys.HISTORY)
    try:
        return HistoryRecord() if row is None else decode(row[0], row[1], HistoryRecord)
    except MetadataCorruptError:
        return HistoryRecord()

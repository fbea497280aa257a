"""Finds the records that a key, a header or offsets name (FindRecords), at the leaders of their partitions.

The search is a job of each leader. The client asks again with the same id until it is done, so a lost connection loses
nothing. The selector is personal data: it is in no error and no log line.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import AdminCall, AdminClientBase, failure, partition_rows
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.leaders import LeaderFinder
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import (
    NO_KIND,
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsResponse,
    FindRecordsTopic,
    FoundPartition,
    RecordOffsets,
)
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.protocol.types import (
    UNKNOWN_OFFSET,
    ZERO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.erasure_ledger_records import NamedRun

PARTITIONS_AT_ONCE: Final = 16
"""Partitions that one request asks a leader for; it searches one after the other."""

ROUND_MS: Final = 1_000
"""How long a leader may hold a request; the progress is reported this often."""

KEYS_MAX: Final = 1_000
KEY_BYTES_MAX: Final = 1 << 20
"""The bounds of a broker for keys."""

KEY_READERS: Final[Mapping[str, Callable[[str], bytes]]] = MappingProxyType(
    {"text": str.encode, "hex": bytes.fromhex, "base64": partial(base64.b64decode, validate=True)}
)
"""How people write keys. Readers raise ValueError."""

OnProgress = Callable[[int, int], None]
"""Takes the searched bytes and the bytes to search, of all partitions together as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPartition:
    """The result of a search of one partition by its leader."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    searched_from: Offset
    """The first offset searched. It may be below the log start: deleted records may still be in a file."""
    searched_to: Offset
    """Exclusive: the log end when the search began."""
    count: int
    """How many records were found."""
    offsets: tuple[OffsetRange, ...]
    """Where they are: ascending ranges, both ends inclusive."""
    has_more: bool
    """Whether there are more ranges than `offsets` has."""
    erasures_end: Offset = UNKNOWN_OFFSET
    """The exclusive end of the erasures that name the records, which are committed; -1 if there is none."""
    log_start_offset: Offset = UNKNOWN_OFFSET
    """The leader's, if the search was to erase; otherwise -1. Followers may have records below it, which were not
    searched."""
    newest: tuple[OffsetRange, ...] = ()
    """The records found that are the newest versions of their keys, if the query wants them."""
    other_count: int = 0
    """How many records have the offset of a named one, but another leader epoch or timestamp."""

    @property
    def goal(self) -> EraseGoal:
        """What each replica must have erased when the leader has."""
        # Where nothing is left to be found, an earlier call may have erased it: other replicas may not be done.
        end = self.erasures_end if self.erasures_end > 0 else self.searched_to
        return EraseGoal(max(self.log_start_offset, 0), end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """What to find: keys, or a header with its value, or offsets of each partition, or the records that a ledger names.

    Its `repr` has no content.
    """

    keys: frozenset[bytes] = frozenset()
    header: tuple[str, bytes | None] | None = None
    offsets: Mapping[TopicPartition, OffsetRanges] | None = None
    named: Mapping[TopicPartition, Sequence[NamedRun]] | None = None
    named_kind: int = NO_KIND
    """With `named` the `SelectorKind` of the erasure that named them."""
    names_newest: bool = False
    """Whether a search in a compacted topic tells what is the newest version of a key."""

    def __post_init__(self) -> None:
        """Errors: ValueError unless there is exactly one of them, within the bounds of a broker."""
        by_partition = (self.offsets is not None) + (self.named is not None)
        if bool(self.keys) + (self.header is not None) + by_partition != 1:
            raise ValueError("give one of keys, a header, and offsets")
        if len(self.keys) > KEYS_MAX:
            raise ValueError(f"{len(self.keys)} keys are given: at most {KEYS_MAX} can be searched at once")
        if sum(map(len, self.keys)) > KEY_BYTES_MAX:
            raise ValueError(f"the keys have more than {KEY_BYTES_MAX} bytes together")

    def __repr__(self) -> str:
        return "RecordQuery()"


class ErasingTerms(NamedTuple):
    """How what is found is erased."""

    commitment: bytes
    """To the query; it may be empty."""
    force: bool = False
    """Whether offsets may name the newest version of a key."""
    stands: bool = False
    """Whether the erasure is a standing one, which the leaders must know."""


_SEARCH_ONLY: Final = ErasingTerms(b"")


class FindCall:
    """The search of one call. With `erasing` the leaders erase what they find; the search id is that of the erasure."""

    def __init__(
        self,
        call: AdminCall,
        query: RecordQuery,
        on_progress: OnProgress | None,
        *,
        search_id: bytes,
        ranges_max: int,
        erasing: ErasingTerms | None = None,
    ) -> None:
        self.leaders = LeaderFinder(call)
        self.topic_ids: dict[str, TopicId] = {}
        self._call = call
        self._query = query
        self._ranges_max = ranges_max
        self._on_progress = on_progress
        self._erasing = erasing
        self._search_id = search_id
        self._bytes: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def progress(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """The searched bytes and the bytes to search of each partition, as far as its leader has answered."""
        return self._bytes

    async def run(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, SearchedPartition | AdminError]:
        """Returns the results of all partitions. Errors: as `AdminCall.each`."""
        what = "the erasure in" if self._erasing is not None else "the search of"
        return await self._call.each(partitions, self.leaders.locate, self._send, lambda key: f"{what} {key}")

    async def _send(
        self, broker_id: BrokerId, asked: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[SearchedPartition]]:
        found: dict[TopicPartition, Outcome[SearchedPartition]] = {}
        for start in range(0, len(asked), PARTITIONS_AT_ONCE):
            found |= await self._some(broker_id, asked[start : start + PARTITIONS_AT_ONCE])
        return found

    async def _some(
        self, broker_id: BrokerId, asked: list[TopicPartition]
    ) -> dict[TopicPartition, Outcome[SearchedPartition]]:
        found: dict[TopicPartition, Outcome[SearchedPartition]] = {}
        while len(found) < len(asked):
            left = [key for key in asked if key not in found]
            response = await ask_lowtide(
                self._call, broker_id, self._request(left), 0 if self._query.named is None else 1
            )
            if response.error_code:
                refused = failure("it refused", response.error_code, response.error_message)
                return found | dict.fromkeys(left, refused)
            found |= self._outcomes(broker_id, response)
            if not self._call.deadline.remaining_ms():
                found |= dict.fromkeys((key for key in left if key not in found), RetryLater("the search goes on"))
        return found

    def _request(self, partitions: list[TopicPartition]) -> FindRecordsRequest:
        query, topics, erasing = self._query, dict[str, FindRecordsTopic](), self._erasing or _SEARCH_ONLY
        for key in partitions:
            ranges = () if query.offsets is None else query.offsets[key]
            rows = [RecordOffsets(first_offset=first, last_offset=last) for first, last in ranges]
            named = [] if query.named is None else list(query.named[key])
            topic_id = self.topic_ids.get(key.topic, ZERO_TOPIC_ID)
            topics.setdefault(
                key.topic, FindRecordsTopic(name=key.topic, topic_id=topic_id, partitions=[])
            ).partitions.append(FindRecordsPartition(partition_index=key.partition, offsets=rows, named=named))
        name, value = query.header or (None, None)
        return FindRecordsRequest(
            search_id=self._search_id,
            topics=list(topics.values()),
            keys=sorted(query.keys),
            header_name=None if name is None else name.encode(),
            header_value=value,
            timeout_ms=min(self._call.wait_ms(), ROUND_MS),
            ranges_max=self._ranges_max,
            erase=self._erasing is not None,
            force=erasing.force,
            stands=erasing.stands,
            commitment=erasing.commitment,
            named_kind=query.named_kind,
            names_newest=query.names_newest,
        )

    def _outcomes(
        self, broker_id: BrokerId, response: FindRecordsResponse
    ) -> dict[TopicPartition, Outcome[SearchedPartition]]:
        found: dict[TopicPartition, Outcome[SearchedPartition]] = {}
        for key, row in partition_rows(response.topics):
            self._bytes[key] = (row.searched_bytes, row.total_bytes)
            if row.error_code == ErrorCode.NONE:
                found[key] = Done(_searched(broker_id, row))
            elif row.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.POLICY_VIOLATION):
                found[key] = BrokerAnsweredError(row.error_code, f"{key}", row.error_message)
            elif row.error_code != ErrorCode.REQUEST_TIMED_OUT:
                found[key] = (
                    failure(f"{key}", row.error_code, row.error_message)
                    if row.error_message
                    else self.leaders.on_error(key, row.error_code, "its leader did not search it")
                )
        if self._on_progress is not None:
            self._on_progress(*map(sum, zip(*self._bytes.values(), strict=True)))
        return found


def _searched(broker_id: BrokerId, row: FoundPartition) -> SearchedPartition:
    return SearchedPartition(
        leader=broker_id,
        leader_epoch=row.leader_epoch,
        searched_from=row.searched_from,
        searched_to=row.searched_to,
        count=row.record_count,
        offsets=tuple(OffsetRange(each.first_offset, each.last_offset) for each in row.offsets),
        has_more=row.has_more,
        erasures_end=row.erasures_end,
        log_start_offset=row.log_start_offset,
        newest=tuple(OffsetRange(each.first_offset, each.last_offset) for each in row.newest),
        other_count=row.other_count,
    )


def checked_query(
    partitions: Collection[TopicPartition],
    keys: Collection[bytes],
    header: tuple[str, bytes | None] | None,
    offsets: Mapping[TopicPartition, Sequence[tuple[Offset, Offset]]] | None,
) -> RecordQuery:
    """Returns what to find. Errors: ValueError, without its content."""
    ranges = None if offsets is None else {key: OffsetRanges(each) for key, each in offsets.items()}
    if ranges is not None and not all(ranges.get(key) for key in partitions):
        raise ValueError("offsets must have at least one offset of each partition")
    return RecordQuery(keys=frozenset(keys), header=header, offsets=ranges)


async def find_records(  # noqa: PLR0913  options, each by its name
    client: AdminClientBase,
    partitions: Collection[TopicPartition],
    *,
    keys: Collection[bytes] = (),
    header: tuple[str, bytes | None] | None = None,
    offsets: Mapping[TopicPartition, Sequence[tuple[Offset, Offset]]] | None = None,
    ranges_max: int = 1_000,
    topic_ids: Mapping[str, TopicId] | None = None,
    on_progress: OnProgress | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, SearchedPartition | AdminError]:
    """Finds the records with one of some keys, or with a header and its value, or at offsets (ends inclusive).

    Each leader searches its log up to the end at the beginning of the call. Records of open and of aborted transactions
    are found too, and deleted ones that are still in a file. Needs READ on the topics.

    At most `ranges_max` ranges of offsets are returned for a partition; `count` counts all. With `topic_ids`, topics
    that were created again under the same name are refused. `on_progress` is called about once a second.

    Errors: ValueError unless exactly one of `keys`, `header` and `offsets` is given, or for too many keys. Per
    partition: UnsupportedVersionError if the leader is not Lowtide's or too old; BrokerAnsweredError, such as
    POLICY_VIOLATION for more than 100,000 records; DeadlineExceededError.
    """
    query, call = checked_query(partitions, keys, header, offsets), client.call(timeout)
    search_id = call.cluster.ports.random.randbytes(16)
    search = FindCall(call, query, on_progress, search_id=search_id, ranges_max=ranges_max)
    search.topic_ids = dict(topic_ids or {})
    return await search.run(partitions)

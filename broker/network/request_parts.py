"""A request of very many rows as several of a few, and their answers as one.

What an API means decides whether that is possible. Where rows don't matter to each other (`CUTS`), the request is cut:
a handler, its guard and whatever forwards it see requests of usual size. Rows that name the same thing twice do matter
to each other where `twice` is set: the first and the last of them stay together, so that a handler that refuses a
repeated name finds it repeated, and one for which the last row counts finds that; those between are left out
(`repeated_rows`).

A row takes many times its bytes, so none is kept: the frame is read twice. The first reading finds whatever is wrong
with the request, before any part of it is executed; the second gives the parts. Their answers are bytes as soon as they
are there.

Pure: takes a frame and answers, and yields after each bounded step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.packed_part import PackedPart
from lowtide.broker.network.repeated_rows import RepeatedRows
from lowtide.broker.pending import NO_ANSWER
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.constructs import CountedArray
from lowtide.protocol.errors import ErrorCode, SurplusBytesError
from lowtide.protocol.row_decoder import RowDecoder, RowLimits, Tails, row_decoder
from lowtide.protocol.row_encoder import Packing, RowEncoder, row_levels
from lowtide.protocol.schema import wire_form

PLAIN_FACTOR: Final = 2
PLAIN_BYTES_MIN: Final = 256 * 1024
"""An answer has so many times the bytes of its request as they are, or a share of so many that all answers have together; what is
beyond is packed until it is sent."""

Level = tuple[str, str]
"""The field of a request and the field of its answer that have the rows."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of one API are cut. `levels` from the outermost rows to the innermost ones.

    `sequential`: a part begins when the one before it is answered. `changes`: it is carried out to its end, also when its client has gone.
    `joins` are the levels of the answer where they differ from the request's. `apart` are other rows, in each other, that the request
    may have: they are read by themselves.
    """

    levels: tuple[Level, ...]
    twice: tuple[str, ...] | None = None
    sequential: bool = False
    changes: bool = False
    joins: tuple[Level, ...] | None = None
    apart: tuple[str, ...] = ()

    @property
    def answer_fields(self) -> tuple[str, ...]:
        """The fields of the answer's rows, from the outermost level."""
        return tuple(field for _, field in self.joins or self.levels)


_TOPICS = (("topics", "topics"), ("partitions", "partitions"))
_OFFSETS = (("topics", "topics"), ("partition_indexes", "partitions"))
_OFFSETS_OF_GROUPS = (("groups", "groups"), *_OFFSETS)
_STATES = (("topics", "results"), ("partitions", "partitions"))
_GROUPS_SINCE = 8
_TOPICS_BY_ID_SINCE = 6
_TRANSACTIONS_SINCE = 4
_BY_NAME = ("name",)
_BY_NAME_OR_ID = ("name", "topic_id")

CUTS: Final[dict[ApiKey, Callable[[int], Cut | None]]] = {
    ApiKey.PRODUCE: lambda _: Cut(
        levels=(("topic_data", "responses"), ("partition_data", "partition_responses")),
        twice=("name", "topic_id", "index"),
        changes=True,
    ),
    ApiKey.FETCH: lambda _: Cut(
        levels=(("topics", "responses"), ("partitions", "partitions")), apart=("forgotten_topics_data", "partitions")
    ),
    ApiKey.METADATA: lambda _: Cut(levels=(("topics", "topics"),), twice=_BY_NAME_OR_ID, changes=True),
    ApiKey.LIST_OFFSETS: lambda _: Cut(levels=_TOPICS, twice=("name", "partition_index")),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda _: Cut(levels=_TOPICS),
    ApiKey.OFFSET_COMMIT: lambda _: Cut(levels=_TOPICS, changes=True),
    ApiKey.TXN_OFFSET_COMMIT: lambda _: Cut(levels=_TOPICS, changes=True, sequential=True),
    ApiKey.OFFSET_FETCH: lambda version: Cut(levels=_OFFSETS_OF_GROUPS if version >= _GROUPS_SINCE else _OFFSETS),
    ApiKey.OFFSET_DELETE: lambda _: Cut(levels=_TOPICS, changes=True, sequential=True),
    ApiKey.DELETE_RECORDS: lambda _: Cut(levels=_TOPICS, twice=("name", "partition_index"), changes=True),
    ApiKey.DESCRIBE_GROUPS: lambda _: Cut(levels=(("groups", "groups"),)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda _: Cut(levels=(("group_ids", "groups"),)),
    ApiKey.SHARE_GROUP_DESCRIBE: lambda _: Cut(levels=(("group_ids", "groups"),)),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda _: Cut(levels=(("groups", "groups"), *_TOPICS)),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: lambda _: Cut(levels=_STATES, changes=True),
    ApiKey.READ_SHARE_GROUP_STATE: lambda _: Cut(levels=_STATES, changes=True),
    ApiKey.WRITE_SHARE_GROUP_STATE: lambda _: Cut(levels=_STATES, changes=True),
    ApiKey.DELETE_SHARE_GROUP_STATE: lambda _: Cut(levels=_STATES, changes=True),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: lambda _: Cut(levels=_STATES),
    ApiKey.DELETE_GROUPS: lambda _: Cut(levels=(("groups_names", "results"),), changes=True, sequential=True),
    ApiKey.FIND_COORDINATOR: lambda _: Cut(levels=(("coordinator_keys", "coordinators"),)),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda _: Cut(levels=(("transactional_ids", "transaction_states"),)),
    ApiKey.DESCRIBE_CONFIGS: lambda _: Cut(levels=(("resources", "results"),)),
    ApiKey.ALTER_CONFIGS: lambda _: Cut(
        levels=(("resources", "responses"),), twice=("resource_type", "resource_name"), changes=True, sequential=True
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda _: Cut(
        levels=(("resources", "responses"),), twice=("resource_type", "resource_name"), changes=True, sequential=True
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda _: Cut(levels=(("entries", "entries"),), changes=True, sequential=True),
    ApiKey.CREATE_TOPICS: lambda _: Cut(levels=(("topics", "topics"),), twice=_BY_NAME, changes=True, sequential=True),
    ApiKey.CREATE_PARTITIONS: lambda _: Cut(
        levels=(("topics", "results"),), twice=_BY_NAME, changes=True, sequential=True
    ),
    ApiKey.DELETE_TOPICS: lambda version: (
        Cut(levels=(("topics", "responses"),), twice=_BY_NAME_OR_ID, changes=True, sequential=True)
        if version >= _TOPICS_BY_ID_SINCE
        else Cut(levels=(("topic_names", "responses"),), twice=(), changes=True, sequential=True)
    ),
    ApiKey.DESCRIBE_PRODUCERS: lambda _: Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions"))),
    ApiKey.ELECT_LEADERS: lambda _: Cut(
        levels=(("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),
        changes=True,
        sequential=True,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda _: Cut(
        levels=(("topics", "responses"), ("partitions", "partitions")),
        twice=("name", "partition_index"),
        changes=True,
        sequential=True,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda _: Cut(
        levels=(("topics", "topics"), ("partition_indexes", "partitions")), sequential=True
    ),
    ApiKey.WRITE_TXN_MARKERS: lambda _: Cut(
        levels=(("markers", "markers"), ("topics", "topics"), ("partition_indexes", "partitions")), changes=True
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda version: (
        Cut(levels=(("transactions", "results_by_transaction"),), changes=True)
        if version >= _TRANSACTIONS_SINCE
        else None
    ),
}
"""By API, from a version to the cut. An API that isn't here, or has None, is executed whole: its rows belong together."""


def cut_for(key: ApiKey, version: int) -> Cut | None:
    """How a request of this API and version is cut; None where it isn't."""
    return CUTS[key](version) if key in CUTS else None


class Split(msgspec.Struct, frozen=True):
    """How the requests of one API and version are cut, with the codecs, which are compiled when the first such request comes."""

    key: ApiKey
    version: int
    cut: Cut

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the request's rows, from the outermost level."""
        return tuple(field for field, _ in self.cut.levels)

    @property
    def apart(self) -> tuple[str, ...]:
        """The fields of other rows, if this version has them."""
        has_them = bool(self.cut.apart) and self.cut.apart[0] in dict(
            wire_form(API[self.key].request, self.version).fields
        )
        return self.cut.apart if has_them else ()

    def decoder(self) -> RowDecoder:
        """Reads the request in parts."""
        return row_decoder(API[self.key].request, self.version, self.fields, self.apart)

    def decoder_apart(self) -> RowDecoder:
        """Reads the other rows in parts."""
        return row_decoder(API[self.key].request, self.version, self.apart, self.fields)

    def joined(self, request_bytes: int, at_once: Callable[[], int]) -> JoinedAnswer:
        """What the answers of the parts go into, to a request of so many bytes.

        `at_once`: how many such requests there are.
        """
        levels = row_levels(API[self.key].response, self.version, self.cut.answer_fields)

        def plain_bytes() -> int:
            return max(PLAIN_FACTOR * request_bytes, PLAIN_BYTES_MIN // max(at_once(), 1))

        return JoinedAnswer(RowEncoder(levels, Packing(plain_bytes, PackedPart)))


def split_for(key: ApiKey, version: int) -> Split | None:
    """How a request of this API and version is cut; None where it isn't, or has no rows."""
    cut = cut_for(key, version)
    if cut is None or not isinstance(
        dict(wire_form(API[key].request, version).fields).get(cut.levels[0][0]), CountedArray
    ):
        return None
    return Split(key, version, cut)


class CutRequest:
    """One request that is read in parts.

    `body` is a frame, and where the request begins and ends in it. `at_once`: see `Split.joined`.
    """

    def __init__(self, split: Split, body: tuple[Any, int, int], limits: RowLimits, at_once: Callable[[], int]) -> None:
        self._split = split
        self._body = body
        self._limits = limits
        self._at_once = at_once
        self._tails: Tails = []
        self._repeated = RepeatedRows(split.fields, split.cut.twice) if split.cut.twice is not None else None
        self.bare: Any = None
        """The request without its rows, once it was read."""
        self.rows = 0
        self.has_surplus = False
        """Whether bytes were behind it, once it was read."""

    def look(self) -> Generator[None, None, int]:
        """Read it for the first time; returns the number of its rows.

        Errors: ProtocolError for malformed bytes; TooManyRowsError beyond the limits, also of names that are repeated.
        """
        field = self._split.fields[0]
        steps = self._split.decoder()(*self._body, self._limits, self._tails)
        try:
            while True:
                part = next(steps)
                if part is not None and self._repeated is not None:
                    yield from self._repeated.note(part)
                yield
        except StopIteration as end:
            message, rows = end.value
        except SurplusBytesError as surplus:
            (message, rows), self.has_surplus = surplus.value, True
            self._body = *self._body[:2], surplus.position
        if self._repeated is not None:
            yield from self._repeated.note(getattr(message, field) or [])
            self._repeated.end_of_noting()
        self.bare = message if getattr(message, field) is None else replace(message, **{field: []})
        self.rows = rows
        return self.rows

    def parts(self) -> Generator[Any, None, None]:
        """Requests whose rows together are those of this one, one at least; None after other steps."""
        field = self._split.fields[0]
        steps = self._split.decoder()(*self._body, self._limits, self._tails)
        is_first = True
        try:
            while True:
                part = next(steps)
                rows = part if part is None or self._repeated is None else self._repeated.without_others(part)
                is_first = is_first and not rows
                yield replace(self.bare, **{field: rows}) if rows else None
        except StopIteration as end:
            rows = getattr(end.value[0], field)
        if rows and self._repeated is not None:
            rows = self._repeated.without_others(rows)
        if is_first or rows:
            yield replace(self.bare, **{field: rows})  # Without rows, which may ask for everything, it is one request.

    def apart(self) -> Generator[list[Any] | None, None, None]:
        """The rows that are read by themselves, some at a time; None after other steps."""
        if self._split.apart:
            end = yield from self._split.decoder_apart()(*self._body, self._limits, [])
            yield getattr(end[0], self._split.apart[0])

    def whole(self) -> Generator[None, None, Any]:
        """The request with all its rows, for those that are few; one that was cut is several of the same name."""
        field = self._split.fields[0]
        rows: list[Any] = []
        others: list[Any] = []
        for part in self.parts():
            rows += [] if part is None else getattr(part, field)
            yield
        for some in self.apart():
            others += some or []
            yield
        return replace(self.bare, **{field: rows}, **({self._split.apart[0]: others} if others else {}))

    @property
    def size(self) -> int:
        """Its bytes."""
        _, start, stop = self._body
        return stop - start

    def joined(self) -> JoinedAnswer:
        """What the rows of its answer go into."""
        return self._split.joined(self.size, self._at_once)


class JoinedAnswer:
    """One answer with the rows of those to the parts, in their order; a row that was cut is one again.

    An answer that has an error for the whole request is that of all, and so is one that is missing.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        self._encoder = encoder
        self.instead: Any = None
        """The answer that counts for all: None where it could not be given, `NO_ANSWER` where none is wanted."""
        self.is_replaced = False

    def add(self, answer: Any) -> Generator[None, None, None]:
        """The answer to the next part; None where it could not be given."""
        is_missing = answer is None or answer is NO_ANSWER
        if is_missing or getattr(answer, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            if not self.is_replaced:
                self.instead, self.is_replaced = answer, True
        elif not self.is_replaced:
            yield from self._encoder.add(answer)

    @property
    def message(self) -> Any:
        """The answer without its rows, as it will be written."""
        return self._encoder.message

    @property
    def records_bytes(self) -> int:
        """Of the records in it."""
        return self._encoder.records_bytes

    def finish(self) -> list[Part]:
        """The answer as bytes, where none is instead of it."""
        assert not self.is_replaced, "another answer counts"
        return self._encoder.finish()

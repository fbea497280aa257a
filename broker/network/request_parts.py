"""A request of very many rows as several of a few, and their answers as one.

What an API means decides whether that is possible. Where rows don't matter to each other (`CUTS`), the request is cut: a handler, its guard
and whatever forwards it see requests of usual size. Rows that name the same thing twice do matter to each other where `twice` is set:
the first and the last of them stay together, so that a handler that refuses a repeated name finds it repeated, and one for which the
last row counts finds that; those between are left out.

Pure: takes requests and answers, and yields after each bounded step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode, TooManyRowsError

_STEP_ROWS: Final = 256
"""A step's work, where rows are looked at and not executed."""

Level = tuple[str, str]
"""The field of a request and the field of its answer that have the rows."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of one API are cut. `levels` from the outermost rows to the innermost ones.

    `sequential`: a part begins when the one before it is answered. `changes`: it is carried out to its end, also when its client has gone.
    `joins` are the levels of the answer where they differ from the request's.
    """

    levels: tuple[Level, ...]
    twice: tuple[str, ...] | None = None
    sequential: bool = False
    changes: bool = False
    joins: tuple[Level, ...] | None = None

    @property
    def answer_fields(self) -> tuple[str, ...]:
        """The fields of the answer's rows, from the outermost level."""
        return tuple(field for _, field in self.joins or self.levels)


_TOPICS = (("topics", "topics"), ("partitions", "partitions"))
_OFFSETS = (("topics", "topics"), ("partition_indexes", "partitions"))
_OFFSETS_OF_GROUPS = (("groups", "groups"), *_OFFSETS)
_GROUPS_SINCE = 8
_TOPICS_BY_ID_SINCE = 6
_TRANSACTIONS_SINCE = 4
_BY_NAME = ("name",)
_BY_NAME_OR_ID = ("name", "topic_id")

CUTS: Final[dict[ApiKey, Callable[[int], Cut | None]]] = {
    ApiKey.PRODUCE: lambda _: Cut(
        levels=(("topic_data", "responses"), ("partition_data", "partition_responses")), twice=("name", "topic_id", "index"), changes=True
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
    ApiKey.CREATE_TOPICS: lambda _: Cut(levels=(("topics", "topics"),), twice=_BY_NAME, changes=True, sequential=True),
    ApiKey.CREATE_PARTITIONS: lambda _: Cut(levels=(("topics", "results"),), twice=_BY_NAME, changes=True, sequential=True),
    ApiKey.DELETE_TOPICS: lambda version: (
        Cut(levels=(("topics", "responses"),), twice=_BY_NAME_OR_ID, changes=True, sequential=True)
        if version >= _TOPICS_BY_ID_SINCE
        else Cut(levels=(("topic_names", "responses"),), twice=(), changes=True, sequential=True)
    ),
    ApiKey.DESCRIBE_PRODUCERS: lambda _: Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions"))),
    ApiKey.ELECT_LEADERS: lambda _: Cut(
        levels=(("topic_partitions", "replica_election_results"), ("partitions", "partition_result")), changes=True, sequential=True
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda _: Cut(
        levels=(("topics", "responses"), ("partitions", "partitions")), twice=("name", "partition_index"), changes=True, sequential=True
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda _: Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions")), sequential=True),
    ApiKey.WRITE_TXN_MARKERS: lambda _: Cut(
        levels=(("markers", "markers"), ("topics", "topics"), ("partition_indexes", "partitions")), changes=True
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda version: (
        Cut(levels=(("transactions", "results_by_transaction"),), changes=True) if version >= _TRANSACTIONS_SINCE else None
    ),
}
"""By API, from a version to the cut. An API that isn't here, or has None, is executed whole: its rows belong together."""


def cut_for(key: ApiKey, version: int) -> Cut | None:
    """How a request of this API and version is cut; None where it isn't."""
    return CUTS[key](version) if key in CUTS else None


def check_rows(request: Any, cut: Cut, whole_max: int) -> Generator[None, None, None]:
    """Looks whether a request can be cut, before any part of it is executed.

    Errors: TooManyRowsError where a row that can't be cut has more than `whole_max` within.
    """
    for index, row in enumerate(_innermost([request], [field for field, _ in cut.levels])):
        if index % _STEP_ROWS == _STEP_ROWS - 1:
            yield
        if _whole_weight(row, whole_max) - 1 > whole_max:
            message = f"more than {whole_max} rows that belong together"
            raise TooManyRowsError(message)


def _innermost(rows: Sequence[Any], fields: Sequence[str]) -> Iterator[Any]:
    """The rows that aren't cut."""
    if not fields:
        yield from rows
        return
    for row in rows:
        yield from _innermost(getattr(row, fields[0]) or (), fields[1:])


def cut_request(request: Any, cut: Cut, rows_at_once: int, whole_max: int) -> Generator[Any, None, None]:
    """Requests whose rows together are those of `request`, of about `rows_at_once` each, one at least; None after other steps.

    The request is used up: its rows are let go one after the other, or they would be in memory until all are answered.
    """
    fields = [field for field, _ in cut.levels]
    rows = getattr(request, fields[0])
    if not rows:  # None asks for everything.
        yield request
        return
    if cut.twice is not None:
        rows = yield from _twice_together(rows, fields, cut.twice)
    bare = replace(request, **{fields[0]: []})
    for part in _pieces(rows, fields[1:], rows_at_once, whole_max, lets_go=True):
        yield None if part is None else replace(bare, **{fields[0]: part})


def _weight(row: Any, fields: Sequence[str]) -> int:
    """How many rows are within a row, at the levels that are cut, and itself."""
    if not fields:
        return 1
    inner = getattr(row, fields[0]) or ()
    return 1 + (len(inner) if len(fields) == 1 else sum(_weight(each, fields[1:]) for each in inner))


def _whole_weight(row: Any, most: int) -> int:
    """How many rows are within one that isn't cut, and itself. Counting ends soon after `most`."""
    if not isinstance(row, msgspec.Struct):
        return 1
    weight = 1
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, list):
            weight += len(value)
            for each in value if value and isinstance(value[0], msgspec.Struct) else ():
                if weight > most + 1:
                    break
                weight += _whole_weight(each, most - weight) - 1
    return weight


def _pieces(rows: Sequence[Any], fields: Sequence[str], most: int, whole_max: int, *, lets_go: bool = False) -> Iterator[list[Any] | None]:
    """Rows in lists of about `most` rows at all levels; a row that has more is several, where it can be cut. None after other steps."""
    piece: list[Any] = []
    weight = 0
    for index, row in enumerate(rows):
        if index % _STEP_ROWS == _STEP_ROWS - 1:
            yield None
        if lets_go and isinstance(rows, list):
            rows[index] = None
        heavy = _weight(row, fields) if fields else _whole_weight(row, whole_max)
        assert fields or heavy - 1 <= whole_max, f"{heavy} rows belong together"
        if piece and weight + heavy > most:
            yield piece
            piece, weight = [], 0
        if heavy > most and fields:
            for part in _pieces(getattr(row, fields[0]), fields[1:], most, whole_max):
                yield part if part is None else [replace(row, **{fields[0]: part})]
            continue
        piece.append(row)
        weight += heavy
    if piece:
        yield piece


def _twice_together(rows: Sequence[Any], fields: Sequence[str], names: tuple[str, ...]) -> Generator[None, None, Sequence[Any]]:
    """The rows, where those that name the same thing are next to each other, the first and the last of them."""
    seen: dict[Any, set[Any]] = {}
    last: dict[Any, Any] = {}
    count = 0
    for outer, row in _flat(rows, fields):
        count += 1
        if count % _STEP_ROWS == 0:
            yield
        of, key = _key(outer, row, names)
        known = seen.setdefault(of, set())
        if key in known:
            last[(of, key)] = row
        known.add(key)
    if not last:
        return rows
    seen.clear()
    ordered: list[tuple[Any, list[Any]]] = []
    done: set[Any] = set()
    for outer, row in _flat(rows, fields):
        count += 1
        if count % _STEP_ROWS == 0:
            yield
        whole = _key(outer, row, names)
        if whole in done:
            continue
        together = [row]
        if whole in last:
            done.add(whole)
            together.append(last[whole])
        if ordered and ordered[-1][0] is outer and outer is not None:
            ordered[-1][1].extend(together)
        else:
            ordered.append((outer, together))
    if len(fields) == 1:
        return [row for _, together in ordered for row in together]
    return [replace(outer, **{fields[1]: together}) for outer, together in ordered]


def _flat(rows: Sequence[Any], fields: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """The innermost rows, each with the one around it; None where there is one level."""
    if len(fields) == 1:
        for row in rows:
            yield None, row
        return
    for outer in rows:
        for row in getattr(outer, fields[1]):
            yield outer, row


def _key(outer: Any, row: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """What a row names, in two parts: the one around it, and itself."""
    if not names:
        return None, row
    if outer is None:
        return None, tuple(getattr(row, name) for name in names)
    return tuple(getattr(outer, name) for name in names[:-1]), getattr(row, names[-1])


def join_answers(answers: Sequence[Any], cut: Cut) -> Generator[None, None, Any]:
    """One answer with the rows of all, in their order; a row that was cut is one again. The answers are used up."""
    fields = cut.answer_fields
    whole = answers[0]
    if getattr(whole, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
        return whole
    whole = replace(whole, **{fields[0]: list(getattr(whole, fields[0]))})  # The handler may give it out again.
    for answer in answers[1:]:
        if getattr(answer, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return answer
        _extend(whole, answer, fields)
        yield
    return whole


def _extend(whole: Any, answer: Any, fields: Sequence[str]) -> None:
    """Add the rows of an answer, or of a row, to those of another, which was made for this request alone."""
    rows, more = getattr(whole, fields[0]), getattr(answer, fields[0])
    if len(fields) > 1 and rows and more and _is_same(rows[-1], more[0], fields[1]):
        _extend(rows[-1], more[0], fields[1:])
        more = more[1:]
    rows.extend(more)


def _is_same(row: Any, other: Any, inner: str) -> bool:
    """Whether two rows are one but for what is within them."""
    return all(getattr(row, name) == getattr(other, name) for name in row.__struct_fields__ if name != inner)

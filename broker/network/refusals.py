"""The answer to a request that is too large to be executed: INVALID_REQUEST, where that version of the API has a place for it.

Some answers have an error code for the whole request. In others each row has its own; then the rows that were asked about are named, with
the error, as many as `ROWS_NAMED_MAX`. A client that misses the others takes the error of one for that of all (commits), asks again
(Metadata, whose answer without brokers counts for nothing), or reports that the answer lacks them (the admin clients). Kafka has no such
limit; its `getErrorResponse` of each API is what fields hold here.

Pure: reads a frame, and yields after each bounded step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from lowtide.broker.network.request_parts import Level, cut_for
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.constructs import AnyConstruct, CountedArray, Entity, Text, fixed_format, nothing_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.first_rows import first_rows
from lowtide.protocol.schema import wire_form

ROWS_NAMED_MAX: Final = 1_000
"""Rows of a request that its refusal names: a refusal is to cost little, however large the request is."""

_STEP_ROWS: Final = 128

_NO_OPERATIONS: Final = -(1 << 31)
"""What `authorized_operations` has where they weren't asked for."""

_LEVELS: Final[Mapping[ApiKey, tuple[Level, ...]]] = {
    ApiKey.FETCH: (("topics", "responses"), ("partitions", "partitions")),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        ("v3_and_below_topics", "results_by_topic_v3_and_below"),
        ("partitions", "results_by_partition"),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (("topics", "topics"),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (("dirs.topics", "results"), ("partitions", "partitions")),
}
"""Of the APIs that aren't cut (`request_parts`), and whose answers have rows for those of the request, or (`a.b`) for those of its rows."""

_SAME_NAME: Final = frozenset(
    {
        "name", "topic", "topic_name", "topic_id", "group_id", "index", "partition", "partition_index", "resource_type", "resource_name",
        "producer_id",
    }
)  # fmt: skip
"""Fields that say what a row is about; its answer has the same."""

_NAMED_OTHERWISE: Final = {"partition_index": "partition", "topic_name": "name"}
"""What the row of a request calls them, where it has another word than its answer."""

_OF_ELEMENT: Final = ("name", "group_id", "key", "transactional_id", "partition_index", "partition_id")
"""What a row of the answer calls an element of the request that isn't a struct."""

_ERRORS: Final = frozenset({"error_code", "partition_error_code"})

Refuse = Callable[[Any, int, int, str], Generator[None, None, Any]]
"""`refuse(frame, position, stop, text)`: steps that return an answer, None where the client reads none. The body is at `position`.

Errors: ProtocolError where the rows aren't of this API.
"""


def refuser(key: ApiKey, version: int) -> Refuse:
    """Makes the answers to requests of this API and version that are refused as a whole."""
    request, response = wire_form(API[key].request, version), wire_form(API[key].response, version)
    cut = cut_for(key, version)
    levels = cut.levels if cut is not None else _LEVELS.get(key, ())
    if "error_code" in dict(response.fields):
        levels = ()

    def refuse(frame: Any, position: int, stop: int, text: str) -> Generator[None, None, Any]:
        text = text[:1].upper() + text[1:]
        answer = _answer(response, text)
        if not levels:
            _add_row_of_none(answer, response, text)
            return answer
        asked = yield from first_rows(request, frame, position, stop, ROWS_NAMED_MAX)
        if key == ApiKey.PRODUCE and asked.acks == 0:
            return None
        yield from _name_rows((asked, answer), response, levels, text)
        return answer

    return refuse


def refusal_of_all(key: ApiKey, version: int, code: ErrorCode) -> Any:
    """An answer to a request of this API and version, of which not even the rows were read: the error and no rows of the request's."""
    response = wire_form(API[key].response, version)
    answer = _answer(response, "")
    _add_row_of_none(answer, response, "")
    for part in (answer, *(row for name, _ in response.fields for row in _rows(getattr(answer, name)))):
        for name in _ERRORS:
            if hasattr(part, name):
                setattr(part, name, code)
    return answer


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _answer(entity: Entity, text: str) -> Any:
    """A whole answer, without rows."""
    return entity.make(**{name: _of_error(name, content, text, at_top=True) for name, content in entity.fields})


def _add_row_of_none(answer: Any, response: Entity, text: str) -> None:
    """Where neither the answer has an error code nor its rows are those of the request: one row that names nothing."""
    if "error_code" in dict(response.fields):
        return
    for name, content in response.fields:
        if (
            isinstance(content, CountedArray)
            and isinstance(content.element, Entity)
            and "error_code" in dict(content.element.fields)
        ):
            row = content.element
            getattr(answer, name).append(row.make(**{each: _of_error(each, inner, text) for each, inner in row.fields}))


def _name_rows(pair: tuple[Any, Any], of: Entity, levels: tuple[Level, ...], text: str) -> Generator[None, None, None]:
    """Give an answer, or a row of one, the rows that what was asked has.

    `pair`: what was asked, and what answers it.
    """
    (asked_field, answer_field), inner = levels[0], levels[1:]
    array = dict(of.fields)[answer_field]
    assert isinstance(array, CountedArray)
    element = array.element
    assert isinstance(element, Entity)
    has_error = not _ERRORS.isdisjoint(dict(element.fields))
    rows = getattr(pair[1], answer_field)
    for asked in _asked_rows(pair[0], asked_field):
        row = element.make(**{name: _of_row(name, content, asked, text) for name, content in element.fields})
        rows.append(row)
        if len(rows) % _STEP_ROWS == 0:
            yield
        if not has_error and inner:
            yield from _name_rows((asked, row), element, inner, text)


def _asked_rows(asked: Any, field: str) -> Iterable[Any]:
    outer, _, inner = field.rpartition(".")
    return chain.from_iterable(getattr(row, inner) or () for row in (getattr(asked, outer) if outer else (asked,)))


def _of_row(name: str, content: AnyConstruct, asked: Any, text: str) -> Any:
    """The value of a field of a row that answers a row or an element of the request."""
    if not hasattr(asked, "__struct_fields__"):
        is_its = name in _OF_ELEMENT and isinstance(asked, str) == isinstance(content, Text)
        return asked if is_its else _of_error(name, content, text)
    if name in _SAME_NAME:
        value = getattr(asked, name, None)
        if value is None and name in _NAMED_OTHERWISE:
            value = getattr(asked, _NAMED_OTHERWISE[name], None)
        if value is not None:
            return value
    return _of_error(name, content, text)


def _of_error(name: str, content: AnyConstruct, text: str, *, at_top: bool = False) -> Any:
    """The value of a field that says nothing, or that there is an error."""
    if name in _ERRORS:
        return ErrorCode.INVALID_REQUEST
    if name == "error_message":
        return text
    if isinstance(content, CountedArray):
        return []
    form = fixed_format(content)
    if form is None or form not in "bhiq" or name == "throttle_time_ms":
        return nothing_of(content)
    if name.endswith("authorized_operations"):
        return _NO_OPERATIONS
    return 0 if at_top and name != "controller_id" else -1

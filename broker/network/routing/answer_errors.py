"""Counts the errors in answers by API and error code, as Kafka's `ErrorsPerSec`.

The places of error codes in an answer follow from its schema, so the code that looks there is compiled once, as codecs
are. All errors of an answer count: at the top and in each row. The handlers of Produce and Fetch count their own errors
instead, which saves a look at each answer.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.constructs import AnyConstruct, CountedArray, Entity
from lowtide.protocol.schema import wire_form

ERROR_FIELDS: Final = frozenset({"error_code", "partition_error_code"})

Errors: TypeAlias = "Counter[tuple[str, int]]"
"""The number of errors by the name of an API and an error code."""


def counting_errors(
    key: ApiKey, version: int, errors: Errors, encode_frame: Callable[[int, Any, bool], Any]
) -> Callable[[int, Any], Any]:
    """Returns a `Route.write` for one API and version that also counts the errors of answers in `errors`.

    `encode_frame` is that of the codec.
    """
    name = API[key].request.__name__.removesuffix("Request")

    def count(code: int) -> None:
        errors[name, int(code)] += 1

    lines = [
        "def look(correlation_id, answer):",
        f" parts = encode_frame(correlation_id, answer, {response_header_is_flexible(key, version)})",
        *_look(wire_form(API[key].response, version)),
        " return parts",
    ]
    namespace: dict[str, Any] = {"count": count, "encode_frame": encode_frame}
    exec(compile("\n".join(lines), "<errors of answers>", "exec"), namespace)  # noqa: S102  of our own schemas, without a value
    return namespace["look"]  # type: ignore[no-any-return]


def _look(form: Entity, part: str = "answer", depth: int = 1) -> list[str]:
    """Returns the lines of code that look at a struct named `part`; none if it has no error field."""
    indent, lines = " " * depth, list[str]()
    for name, content in form.fields:
        if name in ERROR_FIELDS:
            lines += [f"{indent}if {part}.{name}:", f"{indent} count({part}.{name})"]
        inner, is_list = _inner(content)
        found = [] if inner is None else _look(inner, f"part_{depth}", depth + 1)
        if found:
            of = f"{part}.{name} or ()" if is_list else f"() if {part}.{name} is None else ({part}.{name},)"
            lines += [f"{indent}for part_{depth} in {of}:", *found]
    return lines


def _inner(content: AnyConstruct) -> tuple[Entity | None, bool]:
    """Returns the struct in a field, or in each row of its list, and whether it is a list."""
    is_list = isinstance(content, CountedArray)
    inner = content.element if isinstance(content, CountedArray) else content
    return inner if isinstance(inner, Entity) else None, is_list

"""Makes the answer to a request that is refused before it is read: an error without the request's rows.

The values of its fields are those of Kafka's `getErrorResponse`.
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.broker.network.routing.answer_errors import ERROR_FIELDS
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.constructs import AnyConstruct, CountedArray, Entity, fixed_format, nothing_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.schema import wire_form

_NO_OPERATIONS: Final = -(1 << 31)
"""The value of `authorized_operations` if they were not requested."""


def refusal_of_all(key: ApiKey, version: int, code: ErrorCode) -> Any:
    """Returns an answer with `code`: at the top, or in one empty row if the top has no such field."""
    response = wire_form(API[key].response, version)
    answer = response.make(**{name: _of_error(name, content, code, at_top=True) for name, content in response.fields})
    if "error_code" in dict(response.fields):
        return answer
    for name, content in response.fields:
        element = content.element if isinstance(content, CountedArray) else None
        if isinstance(element, Entity) and "error_code" in dict(element.fields):
            fields = {each: _of_error(each, inner, code) for each, inner in element.fields}
            getattr(answer, name).append(element.make(**fields))
    return answer


def _of_error(name: str, content: AnyConstruct, code: ErrorCode, *, at_top: bool = False) -> Any:
    """Returns the error, or an empty value, of a field."""
    if name in ERROR_FIELDS:
        return code
    if name == "error_message":
        return ""
    if isinstance(content, CountedArray):
        return []
    form = fixed_format(content)
    if form is None or form not in "bhiq" or name == "throttle_time_ms":
        return nothing_of(content)
    if name.endswith("authorized_operations"):
        return _NO_OPERATIONS
    return 0 if at_top and name != "controller_id" else -1

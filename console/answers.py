"""Builds the responses to the console's page: values as JSON, errors as an HTTP status and a sentence.

Numbers that JavaScript would round (2**53 and more) are sent as strings, so that offsets stay exact.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from lowtide.admin.errors import (
    AdminError,
    AuthenticationFailedError,
    BrokerAnsweredError,
    ConnectionFailedError,
    DeadlineExceededError,
    UnsupportedVersionError,
)
from lowtide.protocol.errors import ErrorCode

EXACT_MAX: Final = 2**53 - 1
"""The largest integer that JavaScript does not round."""

_BREAKS: Final = re.compile(r"</?(?:br|li|p|ul)\b[^<>]*>")
_MARKS: Final = re.compile(r"</?[a-zA-Z][^<>]*>|`")

RIGHTS: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "you lack a right on the topic: DESCRIBE shows it, READ its records, DESCRIBE_CONFIGS its settings, and "
        "changes need more"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "you lack a right on the group: DESCRIBE shows it, READ sets its offsets, and DELETE deletes it"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "you lack a right on the cluster: DESCRIBE shows its state, DESCRIBE_CONFIGS its settings, and changes need "
        "more"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "you lack a right on the transactional id: DESCRIBE shows it, and WRITE ends its transactions"
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "you lack a right on the token: DESCRIBE shows it",
}
"""What a page says instead of the codes of missing rights."""
_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})


class RefusedError(Exception):
    """A request that gets a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def meaning_of(documentation: str | None) -> str | None:
    """Returns the documentation of a setting without its marks: Lowtide's has Markdown, Apache Kafka's HTML."""
    if not documentation:
        return None
    return " ".join(html.unescape(_MARKS.sub("", _BREAKS.sub(" ", documentation))).split())


def bad(sentence: str) -> RefusedError:
    """Returns the error for an invalid request."""
    return RefusedError(HTTPStatus.BAD_REQUEST, sentence)


def encoded(value: Any) -> bytes:
    """Encodes a value as JSON."""
    return msgspec.json.encode(exact(value))


def exact(value: Any) -> Any:
    """Returns the value with large integers as strings."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)
    if isinstance(value, Mapping):
        return {str(key): exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


def answer(value: Any, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Returns the answer with a value."""
    return web.Response(body=encoded(value), status=status, content_type="application/json")


def refusal(error: RefusedError) -> web.Response:
    """Returns the answer with an error."""
    return answer({"error": error.sentence}, error.status)


def refused(error: AdminError) -> RefusedError:
    """Returns the page's error for an error of the client."""
    status, sentence = _status(error), sentence_of(error)
    if status is HTTPStatus.FORBIDDEN:
        sentence = f"The cluster does not let you do this: {sentence}"
    return RefusedError(status, sentence)


def sentence_of(error: BaseException) -> str:
    """Returns an error as a sentence; it names the right that is missing."""
    text = str(error)
    if isinstance(error, BrokerAnsweredError) and error.code in RIGHTS:
        text = text.replace(error.name, RIGHTS[error.code], 1)
    return text if text.endswith((".", "?")) else f"{text}."


def _status(error: AdminError) -> HTTPStatus:
    if isinstance(error, BrokerAnsweredError):
        if error.code in RIGHTS:
            return HTTPStatus.FORBIDDEN
        return HTTPStatus.NOT_FOUND if error.code in _MISSING else HTTPStatus.CONFLICT
    if isinstance(error, AuthenticationFailedError):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, UnsupportedVersionError):
        return HTTPStatus.NOT_IMPLEMENTED
    away = isinstance(error, ConnectionFailedError | DeadlineExceededError)
    return HTTPStatus.BAD_GATEWAY if away else HTTPStatus.INTERNAL_SERVER_ERROR

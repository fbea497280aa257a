"""Builds the responses to the console's page: values as JSON, errors as an HTTP status and a sentence.

Numbers that JavaScript would round (2**53 and more) are sent as strings, so that offsets stay exact.
"""

from __future__ import annotations

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

_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})


class RefusedError(Exception):
    """A request that gets a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


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
    """Returns an error as a sentence."""
    text = str(error)
    return text if text.endswith((".", "?")) else f"{text}."


def _status(error: AdminError) -> HTTPStatus:
    if isinstance(error, BrokerAnsweredError):
        if error.code in _DENIED:
            return HTTPStatus.FORBIDDEN
        return HTTPStatus.NOT_FOUND if error.code in _MISSING else HTTPStatus.CONFLICT
    if isinstance(error, AuthenticationFailedError):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, UnsupportedVersionError):
        return HTTPStatus.NOT_IMPLEMENTED
    away = isinstance(error, ConnectionFailedError | DeadlineExceededError)
    return HTTPStatus.BAD_GATEWAY if away else HTTPStatus.INTERNAL_SERVER_ERROR

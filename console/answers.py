"""What goes to the page: values as JSON, and errors as a status and a sentence.

A number that JavaScript would round (2**53 and more) goes as a text: an offset must not become another one on its way.
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
"""The largest integer that JavaScript's numbers have without rounding."""

_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})


class RefusedError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def bad(sentence: str) -> RefusedError:
    """A request that can't be meant."""
    return RefusedError(HTTPStatus.BAD_REQUEST, sentence)


def encoded(value: Any) -> bytes:
    """As JSON."""
    return msgspec.json.encode(exact(value))


def exact(value: Any) -> Any:
    """The value, with large integers as texts."""
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
    """A value for the page."""
    return web.Response(body=encoded(value), status=status, content_type="application/json")


def refusal(error: RefusedError) -> web.Response:
    """An error for the page."""
    return answer({"error": error.sentence}, error.status)


def refused(error: AdminError) -> RefusedError:
    """What the page is answered where the cluster did not do what it asked."""
    return RefusedError(_status(error), sentence_of(error))


def sentence_of(error: BaseException) -> str:
    """The error as a sentence."""
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

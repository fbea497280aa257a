"""The errors of the client. All are `AdminError`, and their texts are for people.

An error of one item (a topic, a partition, a group) is a value in the call's result. An error of the whole call is
raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.protocol.client.refused import ClientFailure, ClientFailureKind
from lowtide.protocol.errors import ErrorCode


class AdminError(Exception):
    """The base of all errors of the client."""


class ConnectionFailedError(AdminError, ConnectionError):
    """A connection could not be opened, or was lost.

    `was_sent`: the broker may have executed the request. `hung_up`: the broker closed the connection instead of
    answering.
    """

    def __init__(self, reason: str, *, was_sent: bool = False, hung_up: bool = False) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        self.hung_up = hung_up


class MisroutedError(ConnectionFailedError):
    """Another broker has the address now (KIP-1242). The client must use its bootstrap servers again."""


class ClientClosedError(AdminError):
    """The client was closed before or during the call."""


class AuthenticationFailedError(AdminError):
    """The broker refused the login, or its certificate is not trusted. A retry does not help."""


class UnsupportedVersionError(AdminError):
    """The broker lacks an API, or the version that the call needs."""


class DeadlineExceededError(AdminError, TimeoutError):
    """The call did not finish in time. The text has the last reason for the delay."""


class BrokerAnsweredError(AdminError):
    """A broker answered with an error `code`, known to Kafka's table or not, and perhaps with a message."""

    def __init__(self, code: int, what: str, broker_message: str | None = None) -> None:
        super().__init__(f"{what}: {code_name(code)}{f' ({broker_message})' if broker_message else ''}")
        self.code = code
        self.broker_message = broker_message

    def __reduce__(self) -> tuple[object, ...]:
        return (_restored, (type(self), self.args, self.code, self.broker_message))

    @property
    def name(self) -> str:
        """Kafka's name of the code, such as `NOT_LEADER_OR_FOLLOWER`."""
        return code_name(self.code)


def _restored(
    kind: type[BrokerAnsweredError], args: tuple[object, ...], code: int, broker_message: str | None
) -> BrokerAnsweredError:
    """Unpickles a BrokerAnsweredError."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.code, error.broker_message = code, broker_message
    return error


def code_name(code: int) -> str:
    """Returns Kafka's name of an error code, or the number of an unknown one."""
    return ErrorCode(code).name if code in _CODES else f"error {code}"


def no_token(address: object, reason: object, *, is_final: bool) -> AdminError:
    """Returns the error for a missing token. With `is_final` a retry does not help."""
    return (AuthenticationFailedError if is_final else ConnectionFailedError)(
        f"{address}: no token to log in with: {reason}"
    )


def error_of(refused: ClientFailure) -> AdminError:
    """Returns the error for a refused login or version."""
    if refused.kind is ClientFailureKind.ANSWER:
        return BrokerAnsweredError(refused.code, refused.reason)
    return _ERRORS[refused.kind](refused.reason)


_CODES = frozenset(ErrorCode)

_ERRORS: Final[Mapping[ClientFailureKind, type[AdminError]]] = {
    ClientFailureKind.AUTHENTICATION: AuthenticationFailedError,
    ClientFailureKind.MISROUTED: MisroutedError,
    ClientFailureKind.VERSION: UnsupportedVersionError,
}

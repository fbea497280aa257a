"""What can go wrong between a client and a cluster, each with the sentence that a person needs.

What concerns one item of a call (a topic, a partition, a group) is a value in the call's result, so that the others
aren't lost; what concerns the whole call is raised. All are `AdminError`.
"""

from __future__ import annotations

from lowtide.protocol.client.refused import ClientFailure, FailureKind
from lowtide.protocol.errors import ErrorCode


class AdminError(Exception):
    """Anything that this client reports."""


class ConnectionFailedError(AdminError, ConnectionError):
    """A connection could not be opened, or was lost. `was_sent`: the broker may have received and executed the request.

    `hung_up`: the request was sent, and the broker ended the connection instead of an answer.
    """

    def __init__(self, reason: str, *, was_sent: bool = False, hung_up: bool = False) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        self.hung_up = hung_up


class ClientClosedError(AdminError):
    """The client was closed before, or during, the call."""


class AuthenticationFailedError(AdminError):
    """The broker doesn't believe us, or we don't believe the broker. Trying again changes nothing."""


class UnsupportedVersionError(AdminError):
    """The broker doesn't speak an API, or not in a version that what was asked for needs."""


class DeadlineExceededError(AdminError, TimeoutError):
    """The time of the call is over. The text says what it was waiting for last, and why that didn't come."""


class BrokerAnsweredError(AdminError):
    """A broker answered with an error.

    `code` is its number, in Kafka's table or not; `broker_message` what it said besides, or None.
    """

    def __init__(self, code: int, what: str, broker_message: str | None = None) -> None:
        super().__init__(f"{what}: {code_name(code)}{f' ({broker_message})' if broker_message else ''}")
        self.code = code
        self.broker_message = broker_message

    def __reduce__(self) -> tuple[object, ...]:
        return (_restored, (type(self), self.args, self.code, self.broker_message))

    @property
    def name(self) -> str:
        """The code as Kafka spells it, `NOT_LEADER_OR_FOLLOWER` for one."""
        return code_name(self.code)


def _restored(
    kind: type[BrokerAnsweredError], args: tuple[object, ...], code: int, broker_message: str | None
) -> BrokerAnsweredError:
    """A BrokerAnsweredError out of its pickle."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.code, error.broker_message = code, broker_message
    return error


def code_name(code: int) -> str:
    """Kafka's name of an error code; a code that came after our table by its number."""
    return ErrorCode(code).name if code in _CODES else f"error {code}"


def no_token(address: object, reason: object, *, is_final: bool) -> AdminError:
    """What to raise where there is no token to log in with. A final reason stays when it is tried again."""
    return (AuthenticationFailedError if is_final else ConnectionFailedError)(
        f"{address}: no token to log in with: {reason}"
    )


def error_of(refused: ClientFailure) -> AdminError:
    """What to raise for the end of an attempt."""
    if refused.kind is FailureKind.ANSWER:
        return BrokerAnsweredError(refused.code, refused.reason)
    return (AuthenticationFailedError if refused.kind is FailureKind.AUTHENTICATION else UnsupportedVersionError)(
        refused.reason
    )


_CODES = frozenset(ErrorCode)

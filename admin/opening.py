"""The questions with which every connection begins: which versions the broker speaks, and who we are. No sockets.

`open_session` is a generator: it yields requests with their versions, is sent the decoded answers, and returns the `Session`. An asyncio
connection drives it, and so does a blocking socket in a worker of a pipeline:

    opening, answer = open_session(settings, nonce), None
    while True:
        try:
            request, version = opening.send(answer)
        except StopIteration as ended:
            session = ended.value
            break
        answer = ask(request, version)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeAlias

from lowtide.admin.errors import AuthenticationFailedError, BrokerAnsweredError
from lowtide.admin.exchange import ApiVersions
from lowtide.admin.sasl import tokens
from lowtide.admin.settings import ClientSettings
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.schema import ApiMessage

SOFTWARE_NAME: Final = "lowtide"
SOFTWARE_VERSION: Final = "1"
"""What brokers count clients by (KIP-511); letters, digits, dots and dashes."""

FIRST_TRIED: Final = 4
"""The first version of ApiVersions that tells all features; a broker that doesn't know it says which it knows (KIP-511)."""

LOGIN_SHARE: Final = 0.85
"""The share of an authentication's life after which a new connection is made instead. Kafka: SaslClientAuthenticator, 85 to 95 percent."""


_NO_SASL: Final = "this listener of the broker knows no SASL: security.protocol is for another one"


class Ask(NamedTuple):
    """A request to send, and its version."""

    request: ApiMessage
    version: int


class Session(NamedTuple):
    """An opened connection. `usable_ms`: how long it may be used, or None when its authentication doesn't end."""

    versions: ApiVersions
    usable_ms: int | None = None


Opening: TypeAlias = Generator[Ask, Any, Session]


def open_session(settings: ClientSettings, nonce: str) -> Opening:
    """Ask for the broker's versions, then log in if the settings say so.

    `nonce`: see `sasl.tokens`. Errors: AuthenticationFailedError, UnsupportedVersionError, BrokerAnsweredError.
    """
    versions = yield from _versions()
    if settings.sasl is None:
        return Session(versions)
    return Session(versions, (yield from _log_in(settings, versions, nonce)))


def _versions() -> Generator[Ask, Any, ApiVersions]:
    """Ask in the newest version that most brokers know, and once more as the broker wishes. Source: KIP-511."""
    answer = yield Ask(ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION), FIRST_TRIED)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        answer = yield Ask(ApiVersionsRequest(), 0)
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailedError("the broker wants to know who we are: set security.protocol to SASL_PLAINTEXT or SASL_SSL")
    if answer.error_code != ErrorCode.NONE:
        raise BrokerAnsweredError(answer.error_code, "the broker didn't tell its versions")
    return ApiVersions.of(answer)


def _log_in(settings: ClientSettings, versions: ApiVersions, nonce: str) -> Generator[Ask, Any, int | None]:
    """Returns how long the authentication may be relied on, in milliseconds."""
    sasl = settings.sasl
    assert sasl is not None
    exchange = tokens(sasl, nonce)
    handshake = SaslHandshakeRequest(mechanism=sasl.mechanism)
    if versions.highest(ApiKey.SASL_HANDSHAKE) < 0:
        raise AuthenticationFailedError(_NO_SASL)
    answer = yield Ask(handshake, versions.choose(handshake, at_least=1))
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        message = f"the broker doesn't have the SASL mechanism {sasl.mechanism}; it has {', '.join(answer.mechanisms) or 'none'}"
        raise AuthenticationFailedError(message)
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailedError(_NO_SASL)
    if answer.error_code != ErrorCode.NONE:
        raise BrokerAnsweredError(answer.error_code, "SaslHandshake was refused")
    version = versions.choose(SaslAuthenticateRequest)
    received: bytes | None = None
    while True:
        try:
            token = next(exchange) if received is None else exchange.send(received)
        except StopIteration:
            break
        answer = yield Ask(SaslAuthenticateRequest(auth_bytes=token), version)
        if answer.error_code != ErrorCode.NONE:
            message = f"{sasl.username or 'we'} can't log in by {sasl.mechanism}: {answer.error_message or answer.error_code}"
            raise AuthenticationFailedError(message)
        received = answer.auth_bytes
    return int(answer.session_lifetime_ms * LOGIN_SHARE) if answer.session_lifetime_ms > 0 else None

"""The login of one connection of a SASL listener: its mechanism, its principal, and how long the login is valid.

Decides the answer to each request before the login, and to a repeated login. The connection decodes, sends and closes.
Other requests before the login are refused.

Guards: the text is the same for every wrong credential. A connection never changes its mechanism or principal. Sources:
Kafka's `SaslServerAuthenticator`, KIP-368.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from lowtide.broker.security.exchange import Challenge, LoginSuccess, SaslExchange
from lowtide.broker.security.login_state import LoginEvent, LoginState, next_state
from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal, ShownBy
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeResponse

AGAIN_INTERVAL_MS: Final = 1_000
"""A new login within this time after the start of the last one is refused. Source: `SaslServerAuthenticator`."""

NEVER_MS: Final = 1 << 62
"""The end of logins without an end."""

_SHOWN_CHARACTERS: Final = 100
"""The maximum length of client input in a log line."""


class Mechanism(msgspec.Struct, frozen=True):
    """A mechanism of a listener. `begin` starts an exchange. A login is valid for `lifetime_ms`; 0 is unlimited."""

    begin: Callable[[], SaslExchange]
    lifetime_ms: int = 0


Mechanisms = Mapping[str, Mechanism]
"""The mechanisms of a listener, by name."""


class Reply(msgspec.Struct, frozen=True):
    """The answer to send, or None. With a `failure`, the reason for the log, the connection then closes after a delay.

    Bytes are a token for a client that doesn't know SaslAuthenticate.
    """

    answer: SaslHandshakeResponse | SaslAuthenticateResponse | bytes | None = None
    failure: str = ""


class Login:
    """The login of one connection, by monotonic time.

    The mechanisms may change at any time. Each handshake chooses among the present ones, and its exchange keeps their
    settings.
    """

    __slots__ = (
        "_began_ms",
        "_exchange",
        "_lifetime_ms",
        "_mechanisms",
        "expires_ms",
        "mechanism",
        "principal",
        "shown_by",
        "state",
    )

    def __init__(self, mechanisms: Mechanisms) -> None:
        self._mechanisms = mechanisms
        self._exchange: SaslExchange | None = None
        self._began_ms = 0
        self._lifetime_ms = 0
        self.state = LoginState.BEGINS
        self.mechanism = ""
        self.principal, self.shown_by = ANONYMOUS, ShownBy.NOTHING
        self.expires_ms = NEVER_MS
        """After this time a request of a logged-in client closes the connection."""

    def on_versions(self, *, succeeds: bool) -> Reply:
        """Handles ApiVersions, which is answered with the served versions or an error."""
        if self.state is not LoginState.BEGINS:
            return self.fail("ApiVersions comes a second time before the login")
        self._go(LoginEvent.VERSIONS if succeeds else LoginEvent.STRANGE_VERSIONS)
        return Reply()

    def begins_again(self, now_ms: int) -> bool:
        """Returns whether a logged-in client starts another login with a handshake."""
        return self.expires_ms != NEVER_MS and now_ms - self._began_ms >= AGAIN_INTERVAL_MS

    def on_handshake(self, version: int, wanted: str, now_ms: int) -> Reply:
        is_again = self.state is LoginState.LOGGED_IN
        if is_again and (wanted != self.mechanism or version < 1):
            return self.fail(f"a login again asks for {_shown(wanted)} v{version} instead of {self.mechanism} v1")
        if self.state not in (LoginState.BEGINS, LoginState.VERSIONS_SENT, LoginState.LOGGED_IN):
            answer = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=list(self._mechanisms))
            return self.fail("SaslHandshake comes a second time", answer)
        mechanism = self._mechanisms.get(wanted)
        if mechanism is None:
            answer = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(self._mechanisms)
            )
            return self.fail(f"the mechanism {_shown(wanted)} is not enabled", answer)
        self._go(LoginEvent.HANDSHAKE if version >= 1 else LoginEvent.OLD_HANDSHAKE)
        self.mechanism, self._began_ms = wanted, now_ms
        self._exchange, self._lifetime_ms = mechanism.begin(), mechanism.lifetime_ms
        return Reply(SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=list(self._mechanisms)))

    def on_token(self, token: bytes, now_ms: int) -> Reply:
        exchange = self._exchange
        if exchange is None:
            return self.fail("SaslAuthenticate comes before SaslHandshake")
        is_bare, is_again = self.state is LoginState.BARE_TOKENS, self.state is LoginState.TOKENS_AGAIN
        outcome = exchange.step(token)
        if isinstance(outcome, Challenge):
            self._go(LoginEvent.CHALLENGE)
            return Reply(outcome.token if is_bare else _answer(outcome.token))
        self._exchange = None
        if not isinstance(outcome, LoginSuccess):
            return self._refuse(
                f"{self.mechanism} of user {_shown(outcome.user)}: {outcome.reason}", is_again=is_again, is_bare=is_bare
            )
        principal = KafkaPrincipal(USER_TYPE, outcome.user)
        if is_again and principal != self.principal:
            return self._refuse(f"{self.principal} wants to become another principal", is_again=True, is_bare=False)
        self._go(LoginEvent.SUCCESS)
        self.principal, self.shown_by = principal, ShownBy.TOKEN if outcome.by_token else ShownBy.LOGIN
        lifetime_ms = _shorter(self._lifetime_ms, outcome.lifetime_ms)
        self.expires_ms = now_ms + lifetime_ms if lifetime_ms else NEVER_MS
        return Reply(outcome.token if is_bare else _answer(outcome.token, lifetime_ms))

    def fail(self, reason: str, answer: SaslHandshakeResponse | SaslAuthenticateResponse | None = None) -> Reply:
        """Ends the login. Later input is ignored."""
        self._go(LoginEvent.FAILURE)
        return Reply(answer, reason)

    def _refuse(self, reason: str, *, is_again: bool, is_bare: bool) -> Reply:
        during = "re-authentication" if is_again else "authentication"
        text = f"Authentication failed during {during} due to invalid credentials with SASL mechanism {self.mechanism}"
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        answer = None if is_bare else SaslAuthenticateResponse(error_code=code, error_message=text, auth_bytes=b"")
        return self.fail(reason, answer)

    def _go(self, event: LoginEvent) -> None:
        self.state = next_state(self.state, event)


def _shorter(one_ms: int, other_ms: int) -> int:
    """Returns the shorter of two lifetimes; 0 is unlimited."""
    return min(one_ms, other_ms) if one_ms > 0 and other_ms > 0 else max(one_ms, other_ms, 0)


def _answer(token: bytes, lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
    )


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])

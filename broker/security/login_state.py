"""The states of a login at a SASL listener. Before the login a connection answers only the login itself.

    BEGINS ── STRANGE_VERSIONS ──> BEGINS
    BEGINS ── VERSIONS ──> VERSIONS_SENT
    BEGINS, VERSIONS_SENT ── OLD_HANDSHAKE ──> BARE_TOKENS
    BEGINS, VERSIONS_SENT ── HANDSHAKE ──> TOKENS
    BARE_TOKENS ── CHALLENGE ──> BARE_TOKENS
    TOKENS ── CHALLENGE ──> TOKENS
    TOKENS_AGAIN ── CHALLENGE ──> TOKENS_AGAIN
    BARE_TOKENS, TOKENS, TOKENS_AGAIN ── SUCCESS ──> LOGGED_IN
    LOGGED_IN ── HANDSHAKE ──> TOKENS_AGAIN
    BEGINS, VERSIONS_SENT, BARE_TOKENS, TOKENS, LOGGED_IN, TOKENS_AGAIN ── FAILURE ──> ENDED

Sources: Kafka's `SaslServerAuthenticator`, KIP-43 (handshake), KIP-152 (SaslAuthenticate), KIP-368 (re-authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LoginState(Enum):
    """The state of a login."""

    BEGINS = "nothing was accepted yet"
    """action: answers ApiVersions and SaslHandshake. transition: ApiVersions in an unsupported version, or of a client
    with an invalid name, gets an error (STRANGE_VERSIONS) → BEGINS; VERSIONS → VERSIONS_SENT; a handshake with an
    enabled mechanism, v0 (OLD_HANDSHAKE) → BARE_TOKENS, v1 (HANDSHAKE) → TOKENS; other requests (FAILURE) → ENDED."""
    VERSIONS_SENT = "ApiVersions was answered"
    """action: answers SaslHandshake. transition: OLD_HANDSHAKE → BARE_TOKENS; HANDSHAKE → TOKENS; FAILURE → ENDED."""
    BARE_TOKENS = "tokens come in frames without a header"
    """action: handles each frame as a token. transition: a challenge of the mechanism (CHALLENGE) → BARE_TOKENS; a
    valid login (SUCCESS) → LOGGED_IN; an invalid one, which closes the connection (FAILURE) → ENDED."""
    TOKENS = "tokens come in SaslAuthenticate"
    """action: answers SaslAuthenticate. transition: CHALLENGE → TOKENS; SUCCESS → LOGGED_IN; a wrong credential, or
    another request (FAILURE) → ENDED."""
    LOGGED_IN = "the client is a principal"
    """action: passes requests to the dispatcher. transition: re-authentication, if logins expire (HANDSHAKE) →
    TOKENS_AGAIN; an expired login, or another mechanism (FAILURE) → ENDED."""
    TOKENS_AGAIN = "the client logs in again on the same connection"
    """action: as in TOKENS. transition: CHALLENGE → TOKENS_AGAIN; the same principal (SUCCESS) → LOGGED_IN; FAILURE →
    ENDED."""
    ENDED = "the connection is about to be closed"
    """action: reads nothing. transition: none."""


class LoginEvent(Enum):
    """An event of a login."""

    VERSIONS = "ApiVersions is answered with the supported versions"
    STRANGE_VERSIONS = "ApiVersions is answered with an error, and may be retried"
    OLD_HANDSHAKE = "SaslHandshake v0 names a mechanism of the listener"
    HANDSHAKE = "SaslHandshake v1 names a mechanism of the listener"
    CHALLENGE = "the mechanism sends a token and expects another one"
    SUCCESS = "the login is valid"
    FAILURE = "any other input"


_FALLIBLE: Final = (
    LoginState.BEGINS,
    LoginState.VERSIONS_SENT,
    LoginState.BARE_TOKENS,
    LoginState.TOKENS,
    LoginState.LOGGED_IN,
    LoginState.TOKENS_AGAIN,
)

TRANSITIONS: Final[Mapping[tuple[LoginState, LoginEvent], LoginState]] = {
    (LoginState.BEGINS, LoginEvent.STRANGE_VERSIONS): LoginState.BEGINS,
    (LoginState.BEGINS, LoginEvent.VERSIONS): LoginState.VERSIONS_SENT,
    (LoginState.BEGINS, LoginEvent.OLD_HANDSHAKE): LoginState.BARE_TOKENS,
    (LoginState.VERSIONS_SENT, LoginEvent.OLD_HANDSHAKE): LoginState.BARE_TOKENS,
    (LoginState.BEGINS, LoginEvent.HANDSHAKE): LoginState.TOKENS,
    (LoginState.VERSIONS_SENT, LoginEvent.HANDSHAKE): LoginState.TOKENS,
    (LoginState.BARE_TOKENS, LoginEvent.CHALLENGE): LoginState.BARE_TOKENS,
    (LoginState.TOKENS, LoginEvent.CHALLENGE): LoginState.TOKENS,
    (LoginState.TOKENS_AGAIN, LoginEvent.CHALLENGE): LoginState.TOKENS_AGAIN,
    (LoginState.BARE_TOKENS, LoginEvent.SUCCESS): LoginState.LOGGED_IN,
    (LoginState.TOKENS, LoginEvent.SUCCESS): LoginState.LOGGED_IN,
    (LoginState.TOKENS_AGAIN, LoginEvent.SUCCESS): LoginState.LOGGED_IN,
    (LoginState.LOGGED_IN, LoginEvent.HANDSHAKE): LoginState.TOKENS_AGAIN,
} | {(state, LoginEvent.FAILURE): LoginState.ENDED for state in _FALLIBLE}


def next_state(state: LoginState, event: LoginEvent) -> LoginState:
    """Returns the state after an event. Errors: AssertionError if the table lacks the pair."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} at {state.name}"
    return following

"""How far a connection of a SASL listener is: before its login nothing but the login itself is answered.

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

Sources: Kafka's `SaslServerAuthenticator`, KIP-43 (handshake), KIP-152 (SaslAuthenticate), KIP-368 (a login again).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LoginState(Enum):
    """Where a login stands."""

    BEGINS = "nothing was accepted yet"
    """action: ApiVersions and SaslHandshake are answered. transition: ApiVersions in a version that isn't served, or of
    a client with an impossible name, is answered with the error (STRANGE_VERSIONS) → BEGINS; VERSIONS → VERSIONS_SENT;
    a handshake with a mechanism of the listener, v0 (OLD_HANDSHAKE) → BARE_TOKENS, v1 (HANDSHAKE) → TOKENS; anything
    else (FAILURE) → ENDED."""
    VERSIONS_SENT = "ApiVersions was answered"
    """action: SaslHandshake is answered. transition: OLD_HANDSHAKE → BARE_TOKENS; HANDSHAKE → TOKENS; FAILURE →
    ENDED."""
    BARE_TOKENS = "tokens come in frames without a header"
    """action: each frame is a token. transition: the mechanism goes on (CHALLENGE) → BARE_TOKENS; it is satisfied
    (SUCCESS) → LOGGED_IN; it isn't, which is answered by closing (FAILURE) → ENDED."""
    TOKENS = "tokens come in SaslAuthenticate"
    """action: SaslAuthenticate is answered. transition: CHALLENGE → TOKENS; SUCCESS → LOGGED_IN; a wrong credential, or
    another request (FAILURE) → ENDED."""
    LOGGED_IN = "the client is a principal"
    """action: requests go to the dispatcher. transition: a login again, where logins end after a time (HANDSHAKE) →
    TOKENS_AGAIN; the login has ended, or another mechanism is asked for (FAILURE) → ENDED."""
    TOKENS_AGAIN = "the client logs in again on the same connection"
    """action: as in TOKENS. transition: CHALLENGE → TOKENS_AGAIN; the same principal (SUCCESS) → LOGGED_IN; FAILURE →
    ENDED."""
    ENDED = "the connection is about to be closed"
    """action: nothing is read. transition: none."""


class LoginEvent(Enum):
    """What happens during a login."""

    VERSIONS = "ApiVersions is answered with what is served"
    STRANGE_VERSIONS = "ApiVersions is answered with an error, and may be asked again"
    OLD_HANDSHAKE = "SaslHandshake v0 names a mechanism of the listener"
    HANDSHAKE = "SaslHandshake v1 names a mechanism of the listener"
    CHALLENGE = "the mechanism has a token for the client and wants another one"
    SUCCESS = "the mechanism is satisfied"
    FAILURE = "anything that doesn't lead on"


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

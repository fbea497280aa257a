"""Checks the claims of a JSON Web Token whose signature was verified.

`exp` and `iat` are required; `exp` and `nbf` must fit the present time within the skew. The issuer and the audiences
are compared if configured. A token that names audiences is refused if none is configured, because it may be meant for
another service. Claims must have the types of RFC 7519: a list instead of a text, or a number in a text, is refused.

Pure: time is passed in. Sources: Kafka's `BrokerJwtValidator`, the rules of jose4j below it, CVE-2026-33557 (types).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from lowtide.broker.security.exchange import LoginFailure
from lowtide.runtime.json_text import decode_json

LATEST_S: Final = 253_402_300_799
"""The end of the year 9999. A later time is one in milliseconds by mistake, valid for thousands of years."""

_WHITE: Final = "".join(map(chr, range(33)))
"""The characters that Java's `trim` removes."""

_SHOWN_CHARACTERS: Final = 100

Claims: TypeAlias = dict[str, Any]


class TokenHolder(msgspec.Struct, frozen=True, gc=False):
    """The user of a token, and its exclusive end in milliseconds since 1970."""

    name: str
    expires_ms: int


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """The configured expectations of tokens."""

    audiences: tuple[str, ...] = ()
    """One of these must be among the token's audiences; empty for any."""
    issuer: str = ""
    """The expected issuer; empty for any."""
    skew_s: int = 30
    """How far clocks may differ."""
    subject_claim: str = "sub"
    """The claim with the principal's name."""
    scope_claim: str = "scope"


def unchecked(rules: TokenRules) -> list[str]:
    """Returns the names of claims without an expectation, of issuer and audience."""
    return [name for name, expected in (("issuer", rules.issuer), ("audience", rules.audiences)) if not expected]


class _ClaimError(Exception):
    """A reason to refuse a token, for the log."""


def check_claims(payload: bytes, rules: TokenRules, now_ms: int) -> TokenHolder | LoginFailure:
    """Returns the user of the token with this payload, or the refusal. `now_ms` is wall-clock time."""
    try:
        claims = decode_json(payload, Claims)
    except ValueError:
        return LoginFailure("the token's claims are not an object in JSON")
    name = ""
    try:
        name = _subject(claims, rules)
        expires_s = _check_times(claims, rules.skew_s, now_ms / 1000)
        _check_issuer(claims, rules.issuer)
        _check_audience(claims, rules.audiences)
        _check_scope(claims, rules.scope_claim)
        _text(claims, "jti")
    except _ClaimError as error:
        return LoginFailure(str(error), name)
    return TokenHolder(name, int(expires_s * 1000))


def _subject(claims: Claims, rules: TokenRules) -> str:
    """Returns the principal's name. Errors: _ClaimError."""
    _text(claims, "sub")
    name = (_text(claims, rules.subject_claim) or "").strip(_WHITE)
    if not name:
        raise _ClaimError(f"the claim {rules.subject_claim} is missing or empty")
    return name


def _check_times(claims: Claims, skew_s: int, now_s: float) -> float:
    """Returns when the token ends. Errors: _ClaimError."""
    expires_s, issued_s, begins_s = (_date(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_s is None or issued_s is None:
        raise _ClaimError(f"the claim {'exp' if expires_s is None else 'iat'} is missing")
    if now_s - skew_s >= expires_s:
        raise _ClaimError("it has expired")
    if expires_s < issued_s or (begins_s is not None and expires_s < begins_s):
        raise _ClaimError("it ends before it begins")
    if begins_s is not None and now_s + skew_s < begins_s:
        raise _ClaimError("it is not valid yet")
    return expires_s


def _check_issuer(claims: Claims, expected: str) -> None:
    """Compares the issuer. Errors: _ClaimError."""
    issuer = _text(claims, "iss")
    if expected and issuer != expected:
        raise _ClaimError(f"it is issued by {_shown(issuer)} (sasl.oauthbearer.expected.issuer)")


def _check_audience(claims: Claims, expected: tuple[str, ...]) -> None:
    """Compares the audiences. Errors: _ClaimError."""
    claim = claims.get("aud")
    audiences = [claim] if isinstance(claim, str) else [] if claim is None else claim
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise _ClaimError("the claim aud is neither a text nor a list of texts")
    if expected and not set(expected) & set(audiences):
        raise _ClaimError(f"it is for {_shown(claim)} (sasl.oauthbearer.expected.audience)")


def _check_scope(claims: Claims, name: str) -> None:
    """Checks the form of the scopes, which have no meaning here. Errors: _ClaimError."""
    claim = claims.get(name)
    scopes = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    trimmed = [each.strip(_WHITE) if isinstance(each, str) else "" for each in scopes]
    if not all(trimmed) or len(set(trimmed)) < len(trimmed):
        raise _ClaimError(f"the claim {name} has an empty scope, one twice, or what is no text")


def _text(claims: Claims, name: str) -> str | None:
    """Returns a text claim, or None if it is missing. Errors: _ClaimError."""
    claim = claims.get(name)
    if claim is not None and not isinstance(claim, str):
        raise _ClaimError(f"the claim {name} is no text")
    return claim


def _date(claims: Claims, name: str) -> float | None:
    """Returns a time claim in seconds since 1970, or None if it is missing. Errors: _ClaimError."""
    claim = claims.get(name)
    if claim is None:
        return None
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim <= LATEST_S:
        raise _ClaimError(f"the claim {name} is no time in seconds since 1970")
    return claim


def _shown(claim: object) -> str:
    return repr(claim)[:_SHOWN_CHARACTERS]

"""What the claims of a JSON Web Token must say so that it is a login. Its signature was verified before.

`exp` and `iat` are needed, and `exp`, `nbf` must fit the time now within the skew. An issuer and audiences are compared where they are
configured; a token that names audiences is refused where none is configured, for it may be meant for another service.
Claims have the types of RFC 7519: a list where a text belongs, or a number in a text, is refused.

Pure: time is passed in. Sources: Kafka's `BrokerJwtValidator`, the rules of jose4j below it, CVE-2026-33557 (types).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from lowtide.broker.security.exchange import Refused

LATEST_S: Final = 253_402_300_799
"""The end of the year 9999: a later time is one in milliseconds by mistake, which would hold for thousands of years."""

_WHITE: Final = "".join(map(chr, range(33)))
"""What Java's `trim` takes away."""

_SHOWN_CHARACTERS: Final = 100

Claims: TypeAlias = dict[str, Any]


class TokenHolder(msgspec.Struct, frozen=True, gc=False):
    """Whom a token stands for, and until when, in milliseconds since 1970 (exclusive)."""

    name: str
    expires_ms: int


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of tokens."""

    audiences: tuple[str, ...] = ()
    """One of these must be among a token's; none: the token must name none."""
    issuer: str = ""
    """Empty: any."""
    skew_s: int = 30
    """How far clocks may differ."""
    subject_claim: str = "sub"
    """The claim with the principal's name."""
    scope_claim: str = "scope"


def unchecked(rules: TokenRules) -> list[str]:
    """What nothing is expected of: the issuer, the audience, both or neither."""
    return [name for name, expected in (("issuer", rules.issuer), ("audience", rules.audiences)) if not expected]


class _ClaimError(Exception):
    """Why a token is refused: words for the log."""


def check_claims(payload: bytes, rules: TokenRules, now_ms: int) -> TokenHolder | Refused:
    """Whom the token with this payload stands for. `now_ms` is the wall clock's."""
    try:
        claims = msgspec.json.decode(payload, type=Claims)
    except (msgspec.DecodeError, RecursionError):
        return Refused("the token's claims are not an object in JSON")
    name = ""
    try:
        name = _subject(claims, rules)
        expires_s = _check_times(claims, rules.skew_s, now_ms / 1000)
        _check_issuer(claims, rules.issuer)
        _check_audience(claims, rules.audiences)
        _check_scope(claims, rules.scope_claim)
        _text(claims, "jti")
    except _ClaimError as error:
        return Refused(str(error), name)
    return TokenHolder(name, int(expires_s * 1000))


def _subject(claims: Claims, rules: TokenRules) -> str:
    """Errors: _ClaimError."""
    _text(claims, "sub")
    name = (_text(claims, rules.subject_claim) or "").strip(_WHITE)
    if not name:
        raise _ClaimError(f"the claim {rules.subject_claim} is missing or empty")
    return name


def _check_times(claims: Claims, skew_s: int, now_s: float) -> float:
    """When the token ends. Errors: _ClaimError."""
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
    """Errors: _ClaimError."""
    issuer = _text(claims, "iss")
    if expected and issuer != expected:
        raise _ClaimError(f"it is issued by {_shown(issuer)} (sasl.oauthbearer.expected.issuer)")


def _check_audience(claims: Claims, expected: tuple[str, ...]) -> None:
    """Errors: _ClaimError."""
    claim = claims.get("aud")
    audiences = [claim] if isinstance(claim, str) else [] if claim is None else claim
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise _ClaimError("the claim aud is neither a text nor a list of texts")
    if not expected and claim is None:
        return
    if not set(expected) & set(audiences):
        raise _ClaimError(f"it is for {_shown(claim)} (sasl.oauthbearer.expected.audience)")


def _check_scope(claims: Claims, name: str) -> None:
    """Scopes allow nothing here, but have to be well-formed. Errors: _ClaimError."""
    claim = claims.get(name)
    scopes = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    trimmed = [each.strip(_WHITE) if isinstance(each, str) else "" for each in scopes]
    if not all(trimmed) or len(set(trimmed)) < len(trimmed):
        raise _ClaimError(f"the claim {name} has an empty scope, one twice, or what is no text")


def _text(claims: Claims, name: str) -> str | None:
    """A claim that is a text if it is there. Errors: _ClaimError."""
    claim = claims.get(name)
    if claim is not None and not isinstance(claim, str):
        raise _ClaimError(f"the claim {name} is no text")
    return claim


def _date(claims: Claims, name: str) -> float | None:
    """A claim that is a time in seconds since 1970, if it is there. Errors: _ClaimError."""
    claim = claims.get(name)
    if claim is None:
        return None
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim <= LATEST_S:
        raise _ClaimError(f"the claim {name} is no time in seconds since 1970")
    return claim


def _shown(claim: object) -> str:
    """Of a claim, what may stand in a log line."""
    return repr(claim)[:_SHOWN_CHARACTERS]

"""SASL/SCRAM on the broker's side (RFC 5802, RFC 7677): two tokens of the client, two of the broker.

    BEGINS ── FIRST ──> CHALLENGED
    CHALLENGED ── PROOF ──> ENDED
    BEGINS, CHALLENGED ── UNREADABLE ──> ENDED

Guards: an unknown user gets a challenge like a known one, always the same for that name, and fails at the proof. So the
exchange doesn't reveal which users exist (Kafka fails at the first token). Unknown users get each form of challenge as
often as users have it. The channel binding of the proof must match the first token's (Kafka doesn't compare it).

Names and passwords are raw UTF-8, as in Kafka. With the extension `tokenauth=true` the name is the id of a delegation
token (KIP-48): the client becomes the token's owner until the token ends. Unknown and expired ids are challenged like
known ones. Other extensions are ignored, but a mandatory one is refused. Sources: Kafka's `ScramSaslServer`,
`ScramMessages`, `ScramExtensions`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import hmac
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from lowtide.broker.security.exchange import Challenge, LoginFailure, LoginSuccess, Outcome, same_user, unescaped
from lowtide.protocol.scram import (
    ITERATIONS_MIN,
    SALT_DIGITS,
    ChallengeForm,
    ScramCredential,
    ScramMechanism,
    proves,
    server_signature,
)

TOKEN_BYTES_MAX: Final = 8 * 1024
"""The size limit of a token. A name and two nonces take some hundred bytes."""

_SALT_BYTES: Final = 24
_FIRST: Final = re.compile(rb"((?:n|y|p=[^,]*),(?:a=([^,]*))?,)((m=[^,]*,)?n=([^,]+),r=([!-+\--~]+)(,.*)?)", re.DOTALL)
_PROOF: Final = re.compile(rb"(c=([^,]*),r=([!-+\--~]+)(?:,.*)?),p=([^,]+)", re.DOTALL)
_NO_BINDING: Final = b"n"
_BY_TOKEN: Final = b"tokenauth=true"
_FORMS_MAX: Final = 64
"""The most frequent forms of challenges for unknown users. Each costs a microsecond per login."""

_DRAW_BYTES: Final = 6
_DEFAULT_FORM: Final = ChallengeForm(_SALT_BYTES, has_digits=False, iterations=ITERATIONS_MIN)


class ScramState(Enum):
    """Where an exchange stands."""

    BEGINS = "nothing was received"
    """action: waits for the name and the nonce. transition: FIRST → CHALLENGED; UNREADABLE → ENDED."""
    CHALLENGED = "salt and iterations were sent"
    """action: waits for the proof. transition: PROOF → ENDED, whether it holds or not; UNREADABLE → ENDED."""
    ENDED = "the outcome is known"
    """action: none. transition: none."""


class ScramEvent(Enum):
    """The kind of a token."""

    FIRST = "name and nonce"
    PROOF = "channel binding, both nonces, proof"
    UNREADABLE = "anything else"


TRANSITIONS: Final[Mapping[tuple[ScramState, ScramEvent], ScramState]] = {
    (ScramState.BEGINS, ScramEvent.FIRST): ScramState.CHALLENGED,
    (ScramState.CHALLENGED, ScramEvent.PROOF): ScramState.ENDED,
    (ScramState.BEGINS, ScramEvent.UNREADABLE): ScramState.ENDED,
    (ScramState.CHALLENGED, ScramEvent.UNREADABLE): ScramState.ENDED,
}


def next_state(state: ScramState, event: ScramEvent) -> ScramState:
    """Returns the state after an event. Errors: AssertionError if the table lacks the pair."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} at {state.name}"
    return following


class ScramCredentials(Protocol):
    """The broker's credentials of users."""

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Returns the credential of a user, or None."""

    def forms(self, mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        """Returns the forms of challenges and how many users have each. An unknown user gets one of them."""

    @property
    def secret(self) -> bytes:
        """The key of unknown users' challenges, the same on all brokers and known to no client."""


class TokenOwner(NamedTuple):
    """The user that a token logs in, and for how long the token is still valid, above 0."""

    name: str
    lifetime_ms: int


class TokenCredentials(ScramCredentials, Protocol):
    """The credentials of delegation tokens, by id."""

    def owner_of(self, token_id: str) -> TokenOwner | None:
        """Returns the owner of a token, or None if it is unknown or expired."""


class ScramExchange:
    """A login by SCRAM. `nonce` is printable, without commas, and never reused."""

    def __init__(
        self, mechanism: ScramMechanism, credentials: ScramCredentials, tokens: TokenCredentials, nonce: str
    ) -> None:
        self.state = ScramState.BEGINS
        self._mechanism = mechanism
        self._credentials = credentials
        self._tokens = tokens
        self._by_token = False
        self._nonce = nonce.encode()
        self._user = ""
        self._header = self._client_nonce = self._first_bare = self._server_first = b""
        self._known = False
        self._credential = NO_CREDENTIAL

    def step(self, token: bytes) -> Outcome:
        is_first = self.state is ScramState.BEGINS
        match = (_FIRST if is_first else _PROOF).fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
        event = ScramEvent.UNREADABLE if match is None else ScramEvent.FIRST if is_first else ScramEvent.PROOF
        self.state = next_state(self.state, event)
        if match is None:
            return LoginFailure("the token is not one of SCRAM", self._user)
        outcome = self._challenge(match) if is_first else self._conclude(match)
        if not isinstance(outcome, Challenge):
            self.state = ScramState.ENDED
        return outcome

    def _challenge(self, match: re.Match[bytes]) -> Outcome:
        """Answers the first token with the user's salt and iterations, or made-up ones."""
        self._header, authorization_id, self._first_bare, mandatory, name, client_nonce, extensions = match.groups()
        user, authorization = unescaped(name), unescaped(authorization_id or b"")
        if user is None or authorization is None:
            return LoginFailure("the user's name can't be read")
        self._user = user
        if self._header[:1] != _NO_BINDING:
            return LoginFailure("it asks for channel binding, which no mechanism here has", user)
        if mandatory:
            return LoginFailure("it asks for an extension that must be understood", user)
        if not same_user(authorization, user):
            return LoginFailure("it wants to act for another user", user)
        self._by_token = _BY_TOKEN in (extensions or b"").lower().split(b",")
        credentials = self._tokens if self._by_token else self._credentials
        found = credentials.of(self._mechanism, user)
        self._known = found is not None
        mock = mock_credential(
            self._mechanism, credentials, user
        )  # Computed for every user, so that the time reveals nothing.
        self._credential = found or mock
        self._client_nonce = client_nonce
        salt, iterations = base64.b64encode(self._credential.salt), self._credential.iterations
        self._server_first = b"r=%b%b,s=%b,i=%d" % (client_nonce, self._nonce, salt, iterations)
        return Challenge(self._server_first)

    def _conclude(self, match: re.Match[bytes]) -> Outcome:
        without_proof, binding, nonce, proof_text = match.groups()
        try:
            proof, bound = base64.b64decode(proof_text, validate=True), base64.b64decode(binding, validate=True)
        except binascii.Error:
            return LoginFailure("the proof is not base64", self._user)
        own_nonce = self._client_nonce + self._nonce
        if hmac.compare_digest(nonce, self._client_nonce + own_nonce):
            own_nonce = nonce  # librdkafka before 2.6.1 repeats its own nonce at the front; ours is contained in it.
        messages = b",".join((self._first_bare, self._server_first, without_proof))
        holds = proves(self._mechanism, self._credential, messages, proof)
        if not hmac.compare_digest(nonce, own_nonce):
            return LoginFailure("the nonce is not that of this exchange", self._user)
        if not hmac.compare_digest(bound, self._header):
            return LoginFailure("the channel binding is not that of the first token", self._user)
        if not (holds and self._known):
            return LoginFailure("the user is unknown, or the password is wrong", self._user)
        return self._accepted(b"v=" + base64.b64encode(server_signature(self._mechanism, self._credential, messages)))

    def _accepted(self, token: bytes) -> Outcome:
        """Accepts the proof. A delegation token is checked again, because it may have expired since the challenge."""
        if not self._by_token:
            return LoginSuccess(self._user, token)
        owner = self._tokens.owner_of(self._user)
        if owner is None:
            return LoginFailure("the token has ended meanwhile", self._user)
        return LoginSuccess(owner.name, token, owner.lifetime_ms, by_token=True)


NO_CREDENTIAL: Final = ScramCredential(b"", b"", b"", ITERATIONS_MIN)


def mock_credential(mechanism: ScramMechanism, credentials: ScramCredentials, user: str) -> ScramCredential:
    """Returns the made-up credential of an unknown user, always the same for a name and in the form of a real one."""
    seed = hmac.digest(credentials.secret, f"{mechanism.text} {user}".encode(), "sha256")
    form = _form_of(credentials.forms(mechanism), seed)
    salt = hashlib.shake_256(seed).digest(form.salt_bytes)
    if form.has_digits:
        salt = bytes(SALT_DIGITS[byte % len(SALT_DIGITS)] for byte in salt)
    size = hashlib.new(mechanism.hash_name).digest_size
    return ScramCredential(salt, bytes(size), bytes(size), form.iterations)


def _form_of(forms: Mapping[ChallengeForm, int], seed: bytes) -> ChallengeForm:
    """Draws a form by the seed, with the share of users that have it as its probability.

    If users come and go, few names get another form (weighted rendezvous hashing).
    """
    if not forms:
        return _DEFAULT_FORM
    frequent = (
        forms if len(forms) <= _FORMS_MAX else heapq.nsmallest(_FORMS_MAX, forms, key=lambda form: (-forms[form], form))
    )

    def score(form: ChallengeForm) -> float:
        drawn = int.from_bytes(hmac.digest(seed, repr(tuple(form)).encode(), "sha256")[:_DRAW_BYTES], "big")
        return -forms[form] / math.log((drawn + 0.5) / 2 ** (8 * _DRAW_BYTES))

    return max(frequent, key=score)

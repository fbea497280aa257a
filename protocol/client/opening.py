"""The first conversation on a connection: which versions the broker speaks, and who we are. Answers in, requests out.

    ASKING_VERSIONS ── unsupported version ──> ASKING_OLD_VERSIONS
    ASKING_VERSIONS, ASKING_OLD_VERSIONS ── accepted ──> OPEN, or with SASL CHOOSING_MECHANISM
    CHOOSING_MECHANISM ── accepted ──> LOGGING_IN
    LOGGING_IN ── accepted, with a token that is answered ──> LOGGING_IN
    LOGGING_IN ── accepted, and the mechanism is satisfied ──> OPEN
    any ── anything else ──> REFUSED

A shell drives it:

    step = opening.begin()
    while isinstance(step, Ask):
        step = opening.on_answer(<the answer to step.request in step.version>)
    # step is a Session, or Refused

Sources: KIP-511 (ApiVersions first), KIP-152 and KIP-368 (SASL), Kafka's SaslClientAuthenticator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.refused import Refusal, Refused
from lowtide.protocol.client.sasl import SaslError, SaslExchange
from lowtide.protocol.client.versions import ApiVersions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from lowtide.protocol.client.sasl import SaslSettings
    from lowtide.protocol.schema import ApiMessage

SOFTWARE_NAME: Final = "lowtide"
SOFTWARE_VERSION: Final = "1"
"""What brokers count clients by (KIP-511); letters, digits, dots and dashes."""

FIRST_TRIED: Final = 4
"""The first version of ApiVersions that has all features; a broker that doesn't speak it answers which it speaks (KIP-511)."""

LOGIN_SHARE: Final = 0.85
"""The share of an authentication's life after which a new connection replaces it. Kafka: SaslClientAuthenticator, 85 to 95 percent."""

_NO_SASL: Final = "this listener of the broker knows no SASL: security.protocol is for another one"


class Ask(NamedTuple):
    """A request to send, and its version."""

    request: ApiMessage
    version: int


class Session(NamedTuple):
    """An opened connection. `usable_ms`: how long it may be used, or None when its authentication doesn't end."""

    versions: ApiVersions
    usable_ms: int | None = None


Step: TypeAlias = Ask | Session | Refused


class State(Enum):
    """Where the conversation stands."""

    ASKING_VERSIONS = "ApiVersions is on its way, in the newest version that most brokers speak"
    ASKING_OLD_VERSIONS = "ApiVersions is on its way in version 0"
    CHOOSING_MECHANISM = "SaslHandshake is on its way"
    LOGGING_IN = "SaslAuthenticate is on its way"
    OPEN = "requests may be sent"
    REFUSED = "the connection is of no use"


class Event(Enum):
    """What an answer says, by its error code."""

    ACCEPTED = ErrorCode.NONE
    UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION
    UNSUPPORTED_MECHANISM = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    ILLEGAL_STATE = ErrorCode.ILLEGAL_SASL_STATE
    OTHER = None


_EVENTS: Final = {event.value: event for event in Event if event.value is not None}


class Opening:
    """One conversation. `nonce` is what `SaslExchange` needs; without `sasl` it isn't used."""

    def __init__(self, sasl: SaslSettings | None, nonce: str = "") -> None:
        self.state = State.ASKING_VERSIONS
        self._sasl = sasl
        self._nonce = nonce
        self._versions = ApiVersions({})
        self._exchange: SaslExchange | None = None

    def begin(self) -> Step:
        """The first request."""
        return Ask(
            ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION),
            FIRST_TRIED,
        )

    def on_answer(self, answer: Any) -> Step:
        """What follows from the answer to the last request."""
        event = _EVENTS.get(answer.error_code, Event.OTHER)
        handle = self.TABLE[self.state].get(event)
        assert handle is not None, f"{event} at {self.state}"
        try:
            step = handle(self, answer)
        except SaslError as error:
            step = Refused(Refusal.AUTHENTICATION, str(error))
        if not isinstance(step, Ask):
            self.state = State.OPEN if isinstance(step, Session) else State.REFUSED
        return step

    # ------------------------------------------------------------------ what happens in a pair of the table
    def _ask_old_versions(self, _answer: Any) -> Step:
        self.state = State.ASKING_OLD_VERSIONS
        return Ask(ApiVersionsRequest(), 0)

    def _take_versions(self, answer: Any) -> Step:
        """Errors: SaslError."""
        self._versions = ApiVersions.of(answer)
        if self._sasl is None:
            return Session(self._versions)
        self._exchange = SaslExchange(self._sasl, self._nonce)
        if self._versions.highest(ApiKey.SASL_HANDSHAKE) < 0:
            return Refused(Refusal.AUTHENTICATION, _NO_SASL)
        version = self._versions.choose(SaslHandshakeRequest, at_least=1)
        if isinstance(version, Refused):
            return version
        self.state = State.CHOOSING_MECHANISM
        return Ask(SaslHandshakeRequest(mechanism=self._sasl.mechanism), version)

    def _send_token(self, answer: Any) -> Step:
        """The next token of the mechanism, or the session when it needs none. Errors: SaslError."""
        assert self._exchange is not None
        received = answer.auth_bytes if self.state is State.LOGGING_IN else None
        token = self._exchange.step(received)
        if token is None:
            lifetime_ms = answer.session_lifetime_ms
            return Session(self._versions, int(lifetime_ms * LOGIN_SHARE) if lifetime_ms > 0 else None)
        version = self._versions.choose(SaslAuthenticateRequest)
        if isinstance(version, Refused):
            return version
        self.state = State.LOGGING_IN
        return Ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def _sasl_is_missing(self, _answer: Any) -> Step:
        reason = "the broker wants to know who we are: set security.protocol to SASL_PLAINTEXT or SASL_SSL"
        return Refused(Refusal.AUTHENTICATION, reason)

    def _versions_refused(self, answer: Any) -> Step:
        return Refused(Refusal.ANSWER, "the broker didn't tell its versions", answer.error_code)

    def _no_mechanism(self, answer: Any) -> Step:
        assert self._sasl is not None
        has = ", ".join(answer.mechanisms) or "none"
        return Refused(
            Refusal.AUTHENTICATION, f"the broker doesn't have the SASL mechanism {self._sasl.mechanism}; it has {has}"
        )

    def _no_sasl(self, _answer: Any) -> Step:
        return Refused(Refusal.AUTHENTICATION, _NO_SASL)

    def _handshake_refused(self, answer: Any) -> Step:
        return Refused(Refusal.ANSWER, "SaslHandshake was refused", answer.error_code)

    def _login_refused(self, answer: Any) -> Step:
        assert self._sasl is not None
        who, why = self._sasl.username or "we", answer.error_message or answer.error_code
        return Refused(Refusal.AUTHENTICATION, f"{who} can't log in by {self._sasl.mechanism}: {why}")

    TABLE: ClassVar[Mapping[State, Mapping[Event, Callable[[Opening, Any], Step]]]] = {
        State.ASKING_VERSIONS: dict.fromkeys(Event, _versions_refused)
        | {
            Event.ACCEPTED: _take_versions,
            Event.UNSUPPORTED_VERSION: _ask_old_versions,
            Event.ILLEGAL_STATE: _sasl_is_missing,
        },
        State.ASKING_OLD_VERSIONS: dict.fromkeys(Event, _versions_refused)
        | {Event.ACCEPTED: _take_versions, Event.ILLEGAL_STATE: _sasl_is_missing},
        State.CHOOSING_MECHANISM: dict.fromkeys(Event, _handshake_refused)
        | {Event.ACCEPTED: _send_token, Event.UNSUPPORTED_MECHANISM: _no_mechanism, Event.ILLEGAL_STATE: _no_sasl},
        State.LOGGING_IN: dict.fromkeys(Event, _login_refused) | {Event.ACCEPTED: _send_token},
        State.OPEN: {},
        State.REFUSED: {},
    }
    """What happens at each answer. A pair that is missing is a bug of the shell, and raises."""

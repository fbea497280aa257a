"""The negotiation on a new connection: the broker's versions, then the login. Responses in, requests out.

    ASKING_VERSIONS ── unsupported version ──> ASKING_OLD_VERSIONS
    ASKING_VERSIONS ── another broker has the address (KIP-1242) ──> REFUSED
    ASKING_VERSIONS, ASKING_OLD_VERSIONS ── accepted ──> OPEN, or with SASL CHOOSING_MECHANISM
    CHOOSING_MECHANISM ── accepted ──> LOGGING_IN
    LOGGING_IN ── accepted, with a token to answer ──> LOGGING_IN
    LOGGING_IN ── accepted, and the mechanism is complete ──> OPEN
    any ── anything else ──> REFUSED

A shell drives it:

    step = opening.begin()
    while isinstance(step, Ask):
        step = opening.on_answer(<the response to step.request in step.version>)
    # step is a ClientSession, or a ClientFailure

Sources: KIP-511 (ApiVersions first), KIP-152 and KIP-368 (SASL), Kafka's SaslClientAuthenticator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.refused import ClientFailure, ClientFailureKind
from lowtide.protocol.client.sasl import ClientSaslExchange, SaslError
from lowtide.protocol.client.versions import ApiVersions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import NO_NODE, ApiVersionsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from lowtide.protocol.client.sasl import ClientSaslSettings
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId

SOFTWARE_NAME: Final = "lowtide"
SOFTWARE_VERSION: Final = "1"
"""The client's name in brokers' metrics (KIP-511); letters, digits, dots and dashes."""

FIRST_TRIED: Final = 5
"""The version of ApiVersions that names the expected broker. Older brokers answer with their versions (KIP-511)."""

LOGIN_SHARE: Final = 0.85
"""The part of a session's lifetime after which a new connection replaces it. Kafka: SaslClientAuthenticator, 85 to 95
percent."""

_NO_SASL: Final = "this listener of the broker has no SASL: set another security.protocol"


class ExpectedBroker(NamedTuple):
    """The broker that a client expects at an address."""

    cluster_id: str
    broker_id: BrokerId


class Ask(NamedTuple):
    """A request to send, in this version."""

    request: ApiMessage
    version: int


class ClientSession(NamedTuple):
    """An open connection. `usable_ms` is the session's remaining lifetime; None if it does not expire."""

    versions: ApiVersions
    usable_ms: int | None = None


Step: TypeAlias = Ask | ClientSession | ClientFailure


class OpeningState(Enum):
    """The state of the negotiation."""

    ASKING_VERSIONS = "waits for ApiVersions in the newest common version"
    ASKING_OLD_VERSIONS = "waits for ApiVersions in the version that the broker named, or 0"
    CHOOSING_MECHANISM = "waits for SaslHandshake"
    LOGGING_IN = "waits for SaslAuthenticate"
    OPEN = "accepts requests"
    REFUSED = "failed"


class OpeningEvent(Enum):
    """The meaning of a response, by its error code."""

    ACCEPTED = ErrorCode.NONE
    UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION
    UNSUPPORTED_MECHANISM = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    ILLEGAL_STATE = ErrorCode.ILLEGAL_SASL_STATE
    MISROUTED = ErrorCode.REBOOTSTRAP_REQUIRED
    OTHER = None


_EVENTS: Final = {event.value: event for event in OpeningEvent if event.value is not None}


def versions_request(expected: ExpectedBroker | None = None) -> ApiVersionsRequest:
    """Returns this client's ApiVersions request."""
    return ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME,
        client_software_version=SOFTWARE_VERSION,
        cluster_id=None if expected is None else expected.cluster_id,
        node_id=NO_NODE if expected is None else expected.broker_id,
    )


class Opening:
    """One negotiation. `nonce` is for `ClientSaslExchange`; unused without `sasl`.

    With `expected` the broker is asked whether it is that one (KIP-1242). Brokers before Kafka 4.4 do not check it.
    """

    def __init__(
        self, sasl: ClientSaslSettings | None, nonce: str = "", expected: ExpectedBroker | None = None
    ) -> None:
        self.state = OpeningState.ASKING_VERSIONS
        self._expected = expected
        self._sasl = sasl
        self._nonce = nonce
        self._versions = ApiVersions({})
        self._exchange: ClientSaslExchange | None = None

    def begin(self) -> Step:
        return Ask(versions_request(self._expected), FIRST_TRIED)

    def on_answer(self, answer: Any) -> Step:
        """Returns the step after the response to the last request."""
        event = _EVENTS.get(answer.error_code, OpeningEvent.OTHER)
        handle = self.TABLE[self.state].get(event)
        assert handle is not None, f"{event} at {self.state}"
        try:
            step = handle(self, answer)
        except SaslError as error:
            step = ClientFailure(ClientFailureKind.AUTHENTICATION, str(error))
        if not isinstance(step, Ask):
            self.state = OpeningState.OPEN if isinstance(step, ClientSession) else OpeningState.REFUSED
        return step

    # ------------------------------------------------------------------ handlers of the table
    def _ask_old_versions(self, answer: Any) -> Step:
        self.state = OpeningState.ASKING_OLD_VERSIONS
        named = ApiVersions.of(answer).highest(ApiKey.API_VERSIONS)
        return Ask(versions_request(), max(0, min(named, FIRST_TRIED - 1)))

    def _take_versions(self, answer: Any) -> Step:
        self._versions = ApiVersions.of(answer)
        if self._sasl is None:
            return ClientSession(self._versions)
        self._exchange = ClientSaslExchange(self._sasl, self._nonce)
        if self._versions.highest(ApiKey.SASL_HANDSHAKE) < 0:
            return ClientFailure(ClientFailureKind.AUTHENTICATION, _NO_SASL)
        version = self._versions.choose(SaslHandshakeRequest, at_least=1)
        if isinstance(version, ClientFailure):
            return version
        self.state = OpeningState.CHOOSING_MECHANISM
        return Ask(SaslHandshakeRequest(mechanism=self._sasl.mechanism), version)

    def _send_token(self, answer: Any) -> Step:
        """Returns the next token of the mechanism, or the session if it is complete. Errors: SaslError."""
        assert self._exchange is not None
        received = answer.auth_bytes if self.state is OpeningState.LOGGING_IN else None
        token = self._exchange.step(received)
        if token is None:
            lifetime_ms = answer.session_lifetime_ms
            return ClientSession(self._versions, int(lifetime_ms * LOGIN_SHARE) if lifetime_ms > 0 else None)
        version = self._versions.choose(SaslAuthenticateRequest)
        if isinstance(version, ClientFailure):
            return version
        self.state = OpeningState.LOGGING_IN
        return Ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def _sasl_is_missing(self, _answer: Any) -> Step:
        reason = "the broker requires a login: set security.protocol to SASL_PLAINTEXT or SASL_SSL"
        return ClientFailure(ClientFailureKind.AUTHENTICATION, reason)

    def _versions_refused(self, answer: Any) -> Step:
        return ClientFailure(ClientFailureKind.ANSWER, "the broker refused ApiVersions", answer.error_code)

    def _misrouted(self, _answer: Any) -> Step:
        expected = self._expected
        wanted = "" if expected is None else f", not broker {expected.broker_id} of cluster {expected.cluster_id}"
        return ClientFailure(ClientFailureKind.MISROUTED, f"another broker has this address{wanted}")

    def _no_mechanism(self, answer: Any) -> Step:
        assert self._sasl is not None
        has = ", ".join(answer.mechanisms) or "none"
        return ClientFailure(
            ClientFailureKind.AUTHENTICATION,
            f"the broker doesn't have the SASL mechanism {self._sasl.mechanism}; it has {has}",
        )

    def _no_sasl(self, _answer: Any) -> Step:
        return ClientFailure(ClientFailureKind.AUTHENTICATION, _NO_SASL)

    def _handshake_refused(self, answer: Any) -> Step:
        return ClientFailure(ClientFailureKind.ANSWER, "SaslHandshake was refused", answer.error_code)

    def _login_refused(self, answer: Any) -> Step:
        assert self._sasl is not None
        who, why = self._sasl.username or "the client", answer.error_message or answer.error_code
        return ClientFailure(
            ClientFailureKind.AUTHENTICATION, f"{who} cannot log in with {self._sasl.mechanism}: {why}"
        )

    TABLE: ClassVar[Mapping[OpeningState, Mapping[OpeningEvent, Callable[[Opening, Any], Step]]]] = {
        OpeningState.ASKING_VERSIONS: dict.fromkeys(OpeningEvent, _versions_refused)
        | {
            OpeningEvent.ACCEPTED: _take_versions,
            OpeningEvent.UNSUPPORTED_VERSION: _ask_old_versions,
            OpeningEvent.ILLEGAL_STATE: _sasl_is_missing,
            OpeningEvent.MISROUTED: _misrouted,
        },
        OpeningState.ASKING_OLD_VERSIONS: dict.fromkeys(OpeningEvent, _versions_refused)
        | {OpeningEvent.ACCEPTED: _take_versions, OpeningEvent.ILLEGAL_STATE: _sasl_is_missing},
        OpeningState.CHOOSING_MECHANISM: dict.fromkeys(OpeningEvent, _handshake_refused)
        | {
            OpeningEvent.ACCEPTED: _send_token,
            OpeningEvent.UNSUPPORTED_MECHANISM: _no_mechanism,
            OpeningEvent.ILLEGAL_STATE: _no_sasl,
        },
        OpeningState.LOGGING_IN: dict.fromkeys(OpeningEvent, _login_refused) | {OpeningEvent.ACCEPTED: _send_token},
        OpeningState.OPEN: {},
        OpeningState.REFUSED: {},
    }
    """The handler of each response. A missing pair is a bug of the shell, and raises."""

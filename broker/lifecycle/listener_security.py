"""Turns listener settings into login exchanges and TLS contexts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.sasl_settings import MechanismSettings, OwnLogin
from lowtide.broker.lifecycle.broker_base import BrokerBase
from lowtide.broker.lifecycle.certificates import Certificates
from lowtide.broker.network.connection.listener_security import ListenerSecurity
from lowtide.broker.network.connection.sasl_connection import ListenerSasl
from lowtide.broker.network.connection.tls_connection import ListenerTls
from lowtide.broker.network.peer_login import PeerLogin
from lowtide.broker.security.delegation_tokens import TokenSecret, secret_of
from lowtide.broker.security.exchange import SaslExchange
from lowtide.broker.security.plain import PlainExchange, PlainUsers
from lowtide.broker.security.principal import parse_principal
from lowtide.broker.security.scram import ScramCredentials, ScramExchange, TokenCredentials, TokenOwner
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import TokenRecord
from lowtide.metadata.scram_image import credential_of_record
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.protocol.scram import SCRAM_MECHANISMS, ChallengeForm, ScramCredential, ScramMechanism
from lowtide.runtime.clock import Clock
from lowtide.runtime.random import Random

NONCE_BITS = 192
"""Kafka's nonces have 130 bits."""


class ImageTokens:
    """The delegation tokens of the current metadata image."""

    def __init__(self, image: Callable[[], MetadataImage], secret: TokenSecret | None, clock: Clock) -> None:
        """`secret` is None if tokens are disabled."""
        self._image = image
        self._secret = secret
        self._clock = clock

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Returns the credential of a token id; None if the token is unknown or expired."""
        found = self._find(user)
        record = None if found is None else found[0].credentials.get(mechanism.text)
        return None if record is None else credential_of_record(record)

    def forms(self, _mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        """Returns nothing: all tokens have the default form of unknown ones."""
        return {}

    @property
    def secret(self) -> bytes:
        """The secret for the salts of unknown tokens."""
        return self._image().scram.secret if self._secret is None else self._secret.salts

    def owner_of(self, token_id: str) -> TokenOwner | None:
        """Returns the token's owner; None if the token is unknown or expired."""
        found = self._find(token_id)
        return None if found is None else TokenOwner(parse_principal(found[0].owner).name, found[1])

    def _find(self, token_id: str) -> tuple[TokenRecord, int] | None:
        """Returns a valid token, and its remaining lifetime in milliseconds."""
        if self._secret is None:
            return None
        found = self._image().tokens.get(keys.token(self._secret.hmac_of(token_id)))
        left_ms = 0 if found is None else found.token.until_ms - self._clock.wall_ms()
        return None if found is None or left_ms <= 0 else (found.token, left_ms)


class ImageCredentials:
    """The SCRAM credentials of the current metadata image."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._image().scram.of(mechanism, user)

    def forms(self, mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        """Returns the forms of the users' challenges, with the number of users of each."""
        return self._image().scram.forms.get(mechanism, {})

    @property
    def secret(self) -> bytes:
        """The secret for the salts of unknown users."""
        return self._image().scram.secret


BeginExchange = Callable[[], SaslExchange]


class ScramParts(NamedTuple):
    """The parts of SCRAM exchanges."""

    credentials: ScramCredentials
    tokens: TokenCredentials
    random: Random


def scram_parts(base: BrokerBase, image: Callable[[], MetadataImage]) -> ScramParts:
    """Creates the parts of SCRAM exchanges, the same for every listener."""
    ports = base.ports
    tokens = ImageTokens(image, secret_of(base.configs.current.values["delegation.token.secret.key"]), ports.clock)
    return ScramParts(ImageCredentials(image), tokens, ports.random)


def listener_security(
    config: BrokerConfig, certificates: Mapping[str, Certificates], logins: Mapping[str, ListenerSasl]
) -> dict[str, ListenerSecurity]:
    """Returns the security of each listener that is not open, by name."""
    return {
        name: ListenerSecurity(
            sasl=logins.get(name),
            tls=ListenerTls(certificates[name].context, certificates[name].identify) if name in certificates else None,
        )
        for name in config.secured_listeners
    }


def peer_login(base: BrokerBase, certificates: Mapping[str, Certificates]) -> PeerLogin:
    """Returns how this broker authenticates at other brokers."""
    config, random = base.configs.current, base.ports.random
    name, own = config.inter_broker_listener, config.inter_broker_login
    sasl = (
        None
        if own is None
        else ClientSaslSettings(mechanism=own[0], username=own[1].username, password=own[1].password)
    )
    tls = certificates[name].peer_context if name in certificates else None
    return PeerLogin(
        tls, sasl, None if own is None else _tokens(own[1], base), lambda: f"{random.getrandbits(NONCE_BITS):x}"
    )


def _tokens(own: OwnLogin, base: BrokerBase) -> Callable[[], Awaitable[str]] | None:
    if own.tokens is None:
        return None
    from lowtide.runtime.token_source import Tokens  # noqa: PLC0415 - slow, and rarely needed

    return Tokens(own.tokens, base.ports.clock).get


def begin_password_login(settings: MechanismSettings, parts: ScramParts) -> BeginExchange:
    """Returns the function that starts a login exchange with a password mechanism."""
    scram = SCRAM_MECHANISMS.get(settings.name)
    if scram is None:
        return partial(PlainExchange, PlainUsers(settings.users))
    return lambda: ScramExchange(scram, parts.credentials, parts.tokens, f"{parts.random.getrandbits(NONCE_BITS):x}")

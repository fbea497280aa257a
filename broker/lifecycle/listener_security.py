"""From the configuration of listeners to what their connections need: exchanges of logins, the contexts of TLS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.sasl_settings import MechanismSettings, OwnLogin
from lowtide.broker.lifecycle.broker_base import BrokerBase
from lowtide.broker.lifecycle.certificates import Certificates
from lowtide.broker.network.listener_security import ListenerSecurity
from lowtide.broker.network.peer_login import PeerLogin
from lowtide.broker.network.sasl_connection import SaslSettings
from lowtide.broker.network.tls_connection import TlsSettings
from lowtide.broker.security.delegation_tokens import TokenSecret, secret_of
from lowtide.broker.security.exchange import SaslExchange
from lowtide.broker.security.plain import PlainExchange, PlainUsers
from lowtide.broker.security.principal import parse_principal
from lowtide.broker.security.scram import ScramCredentials, ScramExchange, TokenCredentials, TokenOwner
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import TokenRecord
from lowtide.metadata.scram_image import credential_of_record
from lowtide.protocol.client.sasl import SaslSettings as ClientLogin
from lowtide.protocol.scram import SCRAM_MECHANISMS, ChallengeForm, ScramCredential, ScramMechanism
from lowtide.runtime.clock import Clock
from lowtide.runtime.random import Random

NONCE_BITS = 192
"""Of a nonce of ours; Kafka's have 130."""


class ImageTokens:
    """Delegation tokens in the metadata image of now."""

    def __init__(self, image: Callable[[], MetadataImage], secret: TokenSecret | None, clock: Clock) -> None:
        """`secret`: None where there are no tokens."""
        self._image = image
        self._secret = secret
        self._clock = clock

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What checks a token's HMAC, by its id; None for one that isn't there, or has ended."""
        found = self._find(user)
        record = None if found is None else found[0].credentials.get(mechanism.text)
        return None if record is None else credential_of_record(record)

    def forms(self, _mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        """None: all tokens have the form that unknown ones get where there is none."""
        return {}

    @property
    def secret(self) -> bytes:
        """What the salts of unknown tokens are made with."""
        return self._image().scram.secret if self._secret is None else self._secret.salts

    def owner_of(self, token_id: str) -> TokenOwner | None:
        """Whom a token is for; None for one that isn't there, or has ended."""
        found = self._find(token_id)
        return None if found is None else TokenOwner(parse_principal(found[0].owner).name, found[1])

    def _find(self, token_id: str) -> tuple[TokenRecord, int] | None:
        """A token that hasn't ended, and for how long it holds, in milliseconds."""
        if self._secret is None:
            return None
        found = self._image().tokens.get(keys.token(self._secret.hmac_of(token_id)))
        left_ms = 0 if found is None else found.token.until_ms - self._clock.wall_ms()
        return None if found is None or left_ms <= 0 else (found.token, left_ms)


class ImageCredentials:
    """The credentials in the metadata image of now."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user, None if there is none."""
        return self._image().scram.of(mechanism, user)

    def forms(self, mechanism: ScramMechanism) -> Mapping[ChallengeForm, int]:
        """The forms of the users' challenges, with how many users have each."""
        return self._image().scram.forms.get(mechanism, {})

    @property
    def secret(self) -> bytes:
        """What the salts of unknown users are made with."""
        return self._image().scram.secret


BeginExchange = Callable[[], SaslExchange]


class ScramParts(NamedTuple):
    """What exchanges by SCRAM need."""

    credentials: ScramCredentials
    tokens: TokenCredentials
    random: Random


def scram_parts(base: BrokerBase, image: Callable[[], MetadataImage]) -> ScramParts:
    """What exchanges by SCRAM need at every listener."""
    ports = base.ports
    tokens = ImageTokens(image, secret_of(base.configs.current.values["delegation.token.secret.key"]), ports.clock)
    return ScramParts(ImageCredentials(image), tokens, ports.random)


def listener_security(
    config: BrokerConfig, certificates: Mapping[str, Certificates], logins: Mapping[str, SaslSettings]
) -> dict[str, ListenerSecurity]:
    """How the listeners are secured that aren't open to everybody, by their names."""
    return {
        name: ListenerSecurity(
            sasl=logins.get(name),
            tls=TlsSettings(certificates[name].context, certificates[name].identify) if name in certificates else None,
        )
        for name in config.secured_listeners
    }


def peer_login(base: BrokerBase, certificates: Mapping[str, Certificates]) -> PeerLogin:
    """How this broker shows others who it is, by the listener that is for brokers."""
    config, random = base.configs.current, base.ports.random
    name, own = config.inter_broker_listener, config.inter_broker_login
    sasl = None if own is None else ClientLogin(mechanism=own[0], username=own[1].username, password=own[1].password)
    tls = certificates[name].peer_context if name in certificates else None
    return PeerLogin(
        tls, sasl, None if own is None else _tokens(own[1], base), lambda: f"{random.getrandbits(NONCE_BITS):x}"
    )


def _tokens(own: OwnLogin, base: BrokerBase) -> Callable[[], Awaitable[str]] | None:
    """What gives this broker the tokens that it logs in with, if it has any."""
    if own.tokens is None:
        return None
    from lowtide.runtime.token_source import Tokens  # noqa: PLC0415 - takes long, and few brokers need it

    return Tokens(own.tokens, base.ports.clock).get


def begin_password_login(settings: MechanismSettings, parts: ScramParts) -> BeginExchange:
    """What begins an exchange of a mechanism with passwords."""
    scram = SCRAM_MECHANISMS.get(settings.name)
    if scram is None:
        return partial(PlainExchange, PlainUsers(settings.users))
    return lambda: ScramExchange(scram, parts.credentials, parts.tokens, f"{parts.random.getrandbits(NONCE_BITS):x}")

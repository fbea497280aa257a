"""The logins of all listeners with SASL: created at the start, and updated when the configuration changes.

A change applies to each later handshake, also when a client logs in again on an open connection; established logins
stay. Mechanisms that did not change keep their objects: users are not digested again, and keys not fetched again.

Kafka lists these keys as dynamic, but refuses a change at an existing listener. Sources: KIP-226, Kafka's
`DynamicListenerConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.sasl_settings import OAUTHBEARER, MechanismSettings, SaslListener
from lowtide.broker.lifecycle.listener_security import begin_password_login, scram_parts
from lowtide.broker.network.connection.sasl_connection import ListenerSasl
from lowtide.broker.security.login import Mechanism
from lowtide.broker.security.plain import MECHANISM as PLAIN

if TYPE_CHECKING:
    import asyncio

    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.config.oauth_settings import OAuthSettings
    from lowtide.broker.lifecycle.broker_base import BrokerBase
    from lowtide.broker.lifecycle.jwt_verifier import TokenVerifier
    from lowtide.metadata.image import MetadataImage


class ListenerLogins:
    """The logins of all listeners. Call `load` once, then `follow` for each configuration."""

    def __init__(self, base: BrokerBase, image: Callable[[], MetadataImage]) -> None:
        """`image` returns the current metadata, which contain the SCRAM users."""
        self.by_listener: dict[str, ListenerSasl] = {}
        self._base = base
        self._scram = scram_parts(base, image)
        self._in_force: dict[str, SaslListener] = {}
        self._loaded: dict[str, TokenVerifier] = {}
        """Verifiers with keys for OAUTHBEARER settings that are about to be applied."""
        self._fetching: dict[str, asyncio.Task[None]] = {}

    async def load(self) -> None:
        """Creates the logins of all listeners, and fetches the keys of tokens.

        Errors: OSError, a sentence that names the listener.
        """
        for name, settings in _settings(self._base.configs.current).items():
            oauth = _oauth(settings)
            if oauth is not None:
                self._loaded[name] = verifier = _verifier(name, oauth, self._base)
                await verifier.load()
            self.by_listener[name] = ListenerSasl(
                {}, maximum_frame_bytes=settings.receive_bytes_max, delay_ms=settings.failure_delay_ms
            )
        self.follow(self._base.configs.current)

    async def prepare(self, config: BrokerConfig, _named: Collection[str]) -> Callable[[], None]:
        """Checks a new configuration, and fetches the keys that it needs for the next `follow`.

        Returns a function that does nothing. Errors: ConfigError, a sentence that names the listener.
        """
        for name, settings in _settings(config).items():
            in_force = self._in_force[name]
            if (
                name == config.inter_broker_listener
                and config.inter_broker_login is not None
                and config.inter_broker_login[0] == PLAIN
            ):
                _check_brokers(name, in_force, settings)
            oauth = _oauth(settings)
            if oauth is not None and oauth != _oauth(in_force):
                self._loaded[name] = await self._with_keys(name, oauth)
        return lambda: None

    def follow(self, config: BrokerConfig) -> None:
        """Applies a configuration to later handshakes."""
        for name, settings in _settings(config).items():
            sasl, before = self.by_listener.get(name), self._in_force.get(name)
            if sasl is None or settings == before:
                continue
            made = {}
            for each in settings.mechanisms:
                stays = before is not None and each == before.mechanism(each.name)
                made[each.name] = sasl.mechanisms[each.name] if stays else self._made(name, each)
            sasl.use(made)
            self._in_force[name] = settings
            if _oauth(settings) is None:
                self._stop_fetching(name)
            if before is not None:
                self._base.log.info("logins of a listener changed", listener=name, mechanisms=list(made))

    def _made(self, listener_name: str, settings: MechanismSettings) -> Mechanism:
        if settings.oauth is None:
            return Mechanism(begin_password_login(settings, self._scram), settings.lifetime_ms)
        verifier = self._loaded.pop(listener_name, None)
        if verifier is None or verifier.settings != settings.oauth:  # A restore of the metadata skips `prepare`.
            verifier = _verifier(listener_name, settings.oauth, self._base)
        self._stop_fetching(listener_name)
        self._fetching[listener_name] = self._base.tasks.spawn(
            verifier.run(), name=f"keys of tokens at {listener_name}"
        )
        return Mechanism(verifier.begin, settings.lifetime_ms)

    def _stop_fetching(self, listener_name: str) -> None:
        task = self._fetching.pop(listener_name, None)
        if task is not None:
            task.cancel()

    async def _with_keys(self, listener_name: str, settings: OAuthSettings) -> TokenVerifier:
        """Returns a verifier that has keys.

        Errors: ConfigError if there are none, because every token would be refused.
        """
        verifier = _verifier(listener_name, settings, self._base)
        try:
            await verifier.load()
        except OSError as error:
            raise ConfigError(str(error)) from None
        if verifier.failure:
            raise ConfigError(verifier.no_keys)
        return verifier


def _settings(config: BrokerConfig) -> dict[str, SaslListener]:
    return {name: each.sasl for name, each in config.secured_listeners.items() if each.sasl is not None}


def _oauth(settings: SaslListener) -> OAuthSettings | None:
    mechanism = settings.mechanism(OAUTHBEARER)
    return None if mechanism is None else mechanism.oauth


def _verifier(listener_name: str, settings: OAuthSettings, base: BrokerBase) -> TokenVerifier:
    from lowtide.broker.lifecycle.jwt_verifier import token_verifier  # noqa: PLC0415 - slow, and rarely needed

    return token_verifier(listener_name, settings, base)


def _check_brokers(listener_name: str, old: SaslListener, new: SaslListener) -> None:
    """Checks that brokers with the old and the new PLAIN users can log in to each other, if they could before.

    Brokers are changed one by one. Errors: ConfigError.
    """
    before, now = old.mechanism(PLAIN), new.mechanism(PLAIN)
    if before is None or now is None or before.own is None or now.own is None:
        return
    if before.users.get(before.own.username) != before.own.password:
        return
    steps = "add the new user on all brokers first, then log in as it on all, then remove the old user"
    for own, users, which in (
        (before.own, now.users, "the old user of brokers"),
        (now.own, before.users, "the new user of brokers"),
    ):
        if users.get(own.username) != own.password:
            age = "new" if users is now.users else "old"
            raise ConfigError(
                f"brokers could not log in to each other at the listener {listener_name} during the change: {which} is "
                f"not among the {age} users of PLAIN, or has another password there; {steps}"
            )

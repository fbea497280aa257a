"""The console that a broker serves at `http.listeners`. It reaches the cluster through one of the broker's listeners.

Listeners with SASL are preferred: visitors log in with their own names and passwords. Without SASL all visitors are the
same user; the console then accepts visitors of this machine only, who can reach the listener as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide import __version__
from lowtide.admin.settings import ClientSettings
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.console.sessions import ConsolePorts
from lowtide.console.settings import PASSWORD_MECHANISMS, ConsoleSettings, LoginKind, console_client
from lowtide.console.site import ConsoleSite
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.random import system_random
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.config.listeners import ConfiguredListener
    from lowtide.broker.lifecycle.broker import Broker

_TRUST = ("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates")


def broker_console(broker: Broker) -> ConsoleSite:
    """Creates the console of a running broker. Errors: SettingsError."""

    def on_failed(name: str, error: BaseException) -> None:
        broker.log.error("the console failed", task=name, error=f"{type(error).__name__}: {error}")

    ports = ConsolePorts(SystemClock(), system_random(), TaskRegistry(on_failed))
    return ConsoleSite(settings_of(broker.config, broker.ports), ports)


def settings_of(config: BrokerConfig, ports: dict[str, int]) -> ConsoleSettings:
    """Returns the settings of the console. `ports` are those that the system chose. Errors: SettingsError."""
    listener, mechanisms = chosen_listener(config)
    keys = ListenerKeys(config.values, config.given, listener.name)
    advertised = next((each for each in config.advertised_listeners if each.name == listener.name), listener)
    address = advertised._replace(port=advertised.port or ports.get(listener.name, 0)).address
    is_encrypted = listener.protocol.endswith("SSL")
    properties = {"bootstrap.servers": address, "security.protocol": "SSL" if is_encrypted else "PLAINTEXT"}
    if is_encrypted:
        properties |= {
            key: text for key in _TRUST if (text := keys.text(key)) and text.upper() not in ("JKS", "PKCS12")
        }
    return ConsoleSettings(
        client=console_client(ClientSettings.of(properties, "the broker's listener")),
        login=LoginKind.PASSWORD if mechanisms else LoginKind.NONE,
        mechanisms=mechanisms or PASSWORD_MECHANISMS,
        write=config.values["console.write"] is True,
        is_local_only=not mechanisms,
        version=__version__,
    )


def chosen_listener(config: BrokerConfig) -> tuple[ConfiguredListener, tuple[str, ...]]:
    """Returns the listener and the mechanisms of its logins; no mechanisms without logins."""
    for listener in config.listeners:
        secured = config.secured_listeners.get(listener.name)
        offered = (
            () if secured is None or secured.sasl is None else tuple(each.name for each in secured.sasl.mechanisms)
        )
        mechanisms = tuple(name for name in PASSWORD_MECHANISMS if name in offered)
        if mechanisms:
            return listener, mechanisms
    plain = [listener for listener in config.listeners if not listener.protocol.startswith("SASL")]
    return (plain or list(config.listeners))[0], ()

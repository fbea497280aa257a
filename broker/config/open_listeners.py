"""Which listeners serve other machines without asking who they are."""

from __future__ import annotations

from lowtide.broker.config.broker_config import BrokerConfig

_LOOPBACK = ("127.", "localhost", "::1")


def open_beyond_loopback(config: BrokerConfig) -> list[str]:
    """The listeners, as they are configured, that other machines may reach and that ask for neither a login nor a certificate."""
    found = []
    for listener in config.listeners:
        secured = config.secured_listeners.get(listener.name)
        asks = secured is not None and (secured.sasl is not None or (secured.tls is not None and secured.tls.client_auth == "required"))
        if not asks and not listener.host.startswith(_LOOPBACK):
            found.append(listener.text)
    return found

"""Which listeners serve other machines without asking who they are, and which protection of the cluster that leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.broker.config.broker_config import BrokerConfig

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage

_LOOPBACK = ("127.", "localhost", "::1")


def open_beyond_loopback(config: BrokerConfig) -> list[str]:
    """The listeners, as they are configured, that other machines may reach and that ask for neither a login nor a certificate."""
    found = []
    for listener in config.listeners:
        secured = config.secured_listeners.get(listener.name)
        asks = secured is not None and (
            secured.sasl is not None or (secured.tls is not None and secured.tls.client_auth == "required")
        )
        if not asks and not listener.host.startswith(_LOOPBACK):
            found.append(listener.text)
    return found


def protection_left_out(config: BrokerConfig, image: MetadataImage) -> dict[str, int]:
    """Counts the access rules and users in the metadata that an open listener without an authorizer leaves without effect.

    Empty where there are none. Users and rules show that the cluster was secured; a broker that is started over its metadata with an open
    configuration serves every record to every client.
    """
    users = {user for credentials in image.scram.users.values() for user in credentials}
    if config.values["authorizer.class.name"] or not (image.acls or users) or not open_beyond_loopback(config):
        return {}
    return {"access_rules": len(image.acls), "users": len(users)}

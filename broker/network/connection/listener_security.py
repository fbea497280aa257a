"""TLS and SASL of a listener, and the kind of connection that it therefore creates."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.sasl_connection import ListenerSasl, SaslConnection
from lowtide.broker.network.connection.tls_connection import ListenerTls, TlsConnection


class ListenerSecurity(msgspec.Struct, frozen=True):
    """TLS and SASL of a listener. With neither, every client that reaches the port is served."""

    sasl: ListenerSasl | None = None
    tls: ListenerTls | None = None


OPEN: Final = ListenerSecurity()


def make_connection(host: ConnectionHost, listener_name: str, security: ListenerSecurity) -> asyncio.BaseProtocol:
    """Returns the protocol of an accepted socket."""
    sasl, tls = security.sasl, security.tls
    made = Connection(host, listener_name) if sasl is None else SaslConnection(host, listener_name, sasl)
    return made if tls is None else TlsConnection(host, made, tls, identifies=sasl is None)

"""Collects the facts of a client that metrics subscriptions can match, as text."""

from __future__ import annotations

from typing import Final

from lowtide.broker.request_context import RequestContext
from lowtide.protocol.types import topic_id_text

SOURCE: Final = "client_source_address"
TEXT_MAX: Final = 255
"""The maximum length of a client's statement about itself."""


def facts_of(instance_id: bytes, context: RequestContext) -> dict[str, str]:
    """Returns the facts by the names of `client_metrics.CLIENT_FACTS`."""
    connection = context.connection
    name, version = connection.software
    return {
        "client_instance_id": topic_id_text(instance_id),
        "client_id": (context.client_id or "")[:TEXT_MAX],
        "client_software_name": name[:TEXT_MAX],
        "client_software_version": version[:TEXT_MAX],
        SOURCE: connection.client_address,
        "client_source_port": connection.peer.rpartition(":")[2],
    }

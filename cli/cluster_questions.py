"""Questions about a cluster that several commands have."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView


async def view_of_topics(client: AdminClient, topics: Sequence[str] | None, timeout_ms: int) -> ClusterView:
    """What a broker knows of topics, or of all. Errors: AdminError."""
    cluster = client._cluster  # noqa: SLF001
    return await cluster.view(topics, cluster.deadline(timeout_ms))

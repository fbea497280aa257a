"""ApiVersions v5: which broker a client wants to reach (KIP-1242), with the answers of Kafka 4.4.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers import api_versions
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import NO_NODE, ApiVersionsRequest

BROKER: Any = SimpleNamespace(replicas=SimpleNamespace(broker_id=1))
CONTEXT: Any = SimpleNamespace(api_version=5, connection=SimpleNamespace())


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "name", "expected"),
    [
        (None, NO_NODE, "c", ErrorCode.NONE),
        ("mine", 1, "c", ErrorCode.NONE),
        ("mine", NO_NODE, "c", ErrorCode.INVALID_REQUEST),
        (None, 1, "c", ErrorCode.INVALID_REQUEST),
        ("", NO_NODE, "c", ErrorCode.INVALID_REQUEST),
        ("other", 1, "c", ErrorCode.REBOOTSTRAP_REQUIRED),
        ("mine", 2, "c", ErrorCode.REBOOTSTRAP_REQUIRED),
        ("mine", -2, "c", ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, "c", ErrorCode.REBOOTSTRAP_REQUIRED),
        ("other", 2, "-", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_that_names_another_broker_must_bootstrap_again(
    cluster_id: str | None, node_id: int, name: str, expected: ErrorCode
) -> None:
    handle: Any = api_versions.handler({}, lambda: MetadataImage(cluster_id="mine"), BROKER).handle
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    response = handle(request, CONTEXT)
    assert response.error_code == expected
    assert response.finalized_features_epoch == (0 if expected is ErrorCode.NONE else -1)

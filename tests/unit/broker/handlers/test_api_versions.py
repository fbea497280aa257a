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


def client() -> Any:
    """A context of a connection that has not named its software."""
    return SimpleNamespace(api_version=5, connection=SimpleNamespace(software=("", "")))


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
    response = handle(request, client())
    assert response.error_code == expected
    assert response.finalized_features_epoch == (0 if expected is ErrorCode.NONE else -1)


def test_the_software_of_a_client_is_checked_when_it_changes() -> None:
    """Also when a client leaves it empty, as it is before the first request."""
    handle: Any = api_versions.handler({}, lambda: MetadataImage(cluster_id="mine"), BROKER).handle
    context = client()
    for name, version, expected, kept in (
        ("", "", ErrorCode.INVALID_REQUEST, ("", "")),
        ("c", "", ErrorCode.INVALID_REQUEST, ("", "")),
        ("c", "1", ErrorCode.NONE, ("c", "1")),
        ("c", "1", ErrorCode.NONE, ("c", "1")),
        ("c", "-", ErrorCode.INVALID_REQUEST, ("c", "1")),
        ("d" * 65, "2", ErrorCode.NONE, ("d" * 64, "2")),
        ("d" * 64 + "-", "2", ErrorCode.INVALID_REQUEST, ("d" * 64, "2")),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        assert handle(request, context).error_code == expected
        assert context.connection.software == kept

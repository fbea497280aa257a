"""The warning about listeners that every client on the network may use."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.start_lines import ineffective_protection, open_beyond_loopback
from lowtide.metadata.acl_image import AclImage
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.scram_image import ScramImage
from lowtide.protocol.scram import ScramMechanism

TLS = {
    "ssl.keystore.location": "/k.pem",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.location": "/t.pem",
    "ssl.truststore.type": "PEM",
}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, ["PLAINTEXT://:9092"]),
        ({"listeners": "PLAINTEXT://10.0.0.1:9092"}, ["PLAINTEXT://10.0.0.1:9092"]),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, []),
        ({"listeners": "PLAINTEXT://localhost:9092"}, []),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, []),
        (TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093"}, ["SSL://:9093"]),
        (
            TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093", "ssl.client.auth": "requested"},
            ["SSL://:9093"],
        ),
        (TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093", "ssl.client.auth": "required"}, []),
        (TLS | SCRAM | {"listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093"}, []),
    ],
)
def test_what_is_open_beyond_this_machine_is_named(settings: dict[str, str], found: list[str]) -> None:
    assert open_beyond_loopback(load_config(settings=settings)) == found


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
USERS = ScramImage(
    {ScramMechanism.SHA_256: {"alice": MagicMock()}, ScramMechanism.SHA_512: {"alice": MagicMock(), "bob": MagicMock()}}
)
SECURED = MetadataImage(acls={b"rule": MagicMock(spec=AclImage)}, scram=USERS)


@pytest.mark.parametrize(
    ("settings", "image", "found"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, SECURED, {"access_rules": 1, "users": 2}),
        ({"listeners": "PLAINTEXT://:9092"}, MetadataImage(scram=USERS), {"access_rules": 0, "users": 2}),
        ({"listeners": "PLAINTEXT://:9092"}, MetadataImage(), {}),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, SECURED, {}),
        (AUTHORIZER | {"listeners": "PLAINTEXT://:9092"}, SECURED, {}),
        (TLS | SCRAM | {"listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093"}, SECURED, {}),
    ],
)
def test_an_open_broker_of_a_secured_cluster_is_noticed(
    settings: dict[str, str], image: MetadataImage, found: dict[str, int]
) -> None:
    assert ineffective_protection(load_config(settings=settings), image) == found

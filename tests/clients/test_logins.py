"""Real clients log in, and are refused with a wrong password: nothing they ask for is served before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import SCRAM_MECHANISMS, ScramMechanism

from .logging_in import Client, clients_of_which_slow, confluent, kafka_python, says_why

USER, PASSWORD = "alice", "pen=cil, zoë"
USERS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}" user_bob="other";'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def brokers() -> Iterator[LowtideCluster]:
    """A broker whose clients log in at its first listener; the users of SCRAM were added at its second one."""
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    }
    with LowtideCluster(config=config) as cluster:
        with BlockingAdminClient(settings(cluster, "PLAIN", PASSWORD)) as client:
            for name, mechanism in SCRAM_MECHANISMS.items():
                change = ScramUpsertion(mechanism=mechanism, password=PASSWORD, salt=name.encode())
                assert client.alter_scram_users({USER: change}) == {USER: None}
            assert client.describe_scram_users() == {USER: dict.fromkeys(ScramMechanism, 4096)}
        yield cluster


def settings(cluster: LowtideCluster, mechanism: str, password: str) -> dict[str, str]:
    login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    return {"bootstrap.servers": cluster.bootstrap, "security.protocol": "SASL_PLAINTEXT", **login}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", clients_of_which_slow(confluent, kafka_python))
def test_a_client_logs_in_with_its_password_alone(brokers: LowtideCluster, client: Client, mechanism: str) -> None:
    assert client(settings(brokers, mechanism, PASSWORD)) == ""
    assert says_why(client, client(settings(brokers, mechanism, "other"), refused=True))

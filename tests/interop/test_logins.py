"""Kafka's Java client, franz-go and kafkajs log in over TLS and report why they are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import SCRAM_MECHANISMS
from lowtide.runtime.authority import issue, new_authority

from . import kafkajs
from .tools import JavaClient

pytestmark = pytest.mark.interop

USER, PASSWORD = "alice", "pen=cil, zoë"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
LIMIT_S = 180


class Logins(NamedTuple):
    """The file with all attempts, which every program takes."""

    bootstrap: str
    path: Path


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    folder = tmp_path_factory.mktemp("logins")
    now_ms = time.time_ns() // 1_000_000
    authority = new_authority("authority", now_ms)
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "broker.pem").write_bytes(issue(authority, "broker", ["127.0.0.1"], now_ms).both)
    (folder / "client.pem").write_bytes(issue(authority, "alice", [], now_ms).both)
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,LOGINS://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGINS:SASL_SSL,MUTUAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.logins.plain.sasl.jaas.config": PLAIN,
    }
    with LowtideCluster(config=config) as cluster:
        ports = cluster.ports(cluster.broker_ids[0])
        with BlockingAdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic(name="logins", partitions=1)])  # franz-go does not ask for one.
            for name, mechanism in SCRAM_MECHANISMS.items():
                change = ScramUpsertion(mechanism=mechanism, password=PASSWORD, salt=name.encode())
                assert admin.alter_scram_users({USER: change}) == {USER: None}
        common = {"topic": "logins", "ca": str(folder / "ca.pem")}
        by_password = common | {"bootstrap": f"127.0.0.1:{ports['LOGINS']}", "user": USER}
        attempts = [
            by_password
            | {
                "name": f"{mechanism} {password}",
                "mechanism": mechanism,
                "password": PASSWORD if password == "right" else "other",
            }
            for mechanism in MECHANISMS
            for password in ("right", "wrong")
        ]
        by_certificate = common | {"bootstrap": f"127.0.0.1:{ports['MUTUAL']}"}
        attempts += [by_certificate | {"name": "certificate right", "certificate": str(folder / "client.pem")}]
        attempts += [by_certificate | {"name": "certificate wrong"}]
        (folder / "attempts.json").write_text(json.dumps(attempts))
        yield Logins(cluster.bootstrap, folder / "attempts.json")


def check(lines: list[dict[str, str]], *, named: str) -> None:
    """A correct login is served.

    A wrong password is refused with `named` in the client's error; a missing certificate with any error.
    """
    found = {line["name"]: line["error"] for line in lines}
    assert len(found) == 2 * len(MECHANISMS) + 2
    assert {name: error for name, error in found.items() if name.endswith(" right")} == {
        f"{way} right": "" for way in (*MECHANISMS, "certificate")
    }
    assert all(named in found[f"{mechanism} wrong"] for mechanism in MECHANISMS), found
    assert found["certificate wrong"] != ""
    assert PASSWORD not in str(found)


def lines_of(command: list[str], cwd: Path | None = None) -> list[dict[str, str]]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_java_client(logins: Logins, jars: Path, tmp_path: Path) -> None:
    client = JavaClient(jars, logins.bootstrap, tmp_path)
    check(
        lines_of(client.command("logins", attempts=str(logins.path))),
        named="SaslAuthenticationException: Authentication failed",
    )


def test_franz_go(logins: Logins, franz_go_program: Path) -> None:
    check(
        lines_of([str(franz_go_program), "logins", f"-from={logins.path}", f"-timeout={LIMIT_S}s"]),
        named="SASL_AUTHENTICATION_FAILED",
    )


def test_kafkajs(logins: Logins) -> None:
    if shutil.which("npm") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but npm not installed"
        pytest.skip("npm not installed")
    folder = kafkajs.fetch()
    check(lines_of(["node", "logins.js", str(logins.path)], cwd=folder), named="KafkaJSSASLAuthenticationError")

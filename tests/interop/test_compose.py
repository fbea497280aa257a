"""`make up`: an etcd and three brokers in containers, one of which is killed under a client, and all of which keep
their data.

Needs a Docker daemon and images: those of docker-compose.yml if a registry can be reached, else BUILD_IMAGE, BASE_IMAGE
and ETCD_IMAGE built by hand (docs/compose.md explains how). It is skipped without them, unless CI_COMPOSE requires
them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_ports

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
UP_LIMIT_S = 600
CLIENT_LIMIT_S = 60
TOPIC = "numbers"
BROKER_FILES = ["broker.pem", "broker.properties", "ca.pem", "metadata.pem"]


def run(*words: str, limit_s: float = CLIENT_LIMIT_S, text: str = "", environment: dict[str, str] | None = None) -> str:
    """Runs a command to its end. Returns its output. Errors: AssertionError with its error output."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=os.environ | (environment or {}),
    )
    assert done.returncode == 0, (
        f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    )
    return done.stdout


def missing_docker() -> str | None:
    """Returns why containers cannot be used here, or None."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        return "no Docker daemon answers"
    if (
        shutil.which("docker-compose") is None
        and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0  # noqa: PLW1510
    ):
        return "docker compose is not installed"
    for image in (os.environ.get("BUILD_IMAGE"), os.environ.get("BASE_IMAGE"), os.environ.get("ETCD_IMAGE")):
        if (
            image is not None
            and subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode != 0
        ):
            return f"there is no image {image}"
    return None


class Containers:
    """The cluster, on its own ports, under its own project name."""

    def __init__(self) -> None:
        ports = free_ports(7)
        self.ports, http_ports, self.console = ports[:3], ports[3:6], ports[6]
        self._environment = {"COMPOSE_PROJECT_NAME": "lowtide-test"}
        self._environment |= {f"PORT_{n}": str(port) for n, port in enumerate(self.ports, 1)}
        self._environment["CONSOLE_PORT"] = str(self.console)
        self._environment |= {f"HTTP_PORT_{n}": str(port) for n, port in enumerate(http_ports, 1)}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def make(self, *words: str) -> str:
        return run("make", *words, limit_s=UP_LIMIT_S, environment=self._environment)

    def container(self, broker_id: int) -> str:
        """Returns its name, in either version of compose."""
        names = run("docker", "ps", "--all", "--format", "{{.Names}}").split()
        return next(name for name in names if re.fullmatch(rf"lowtide-test[-_]broker-{broker_id}[-_]1", name))

    def kcat(self, *words: str, text: str = "") -> str:
        return run("kcat", "-b", self.bootstrap, *words, text=text)

    def leader(self) -> int:
        found = re.search(r"leader (\d+)", self.kcat("-L", "-t", TOPIC))
        assert found is not None
        return int(found[1])


@pytest.fixture
def containers() -> Iterator[Containers]:
    reason = missing_docker()
    if reason is not None:
        assert not os.environ.get("CI_COMPOSE"), reason
        pytest.skip(reason)
    made = Containers()
    try:
        yield made
    finally:
        made.make("down", "ARGS=--volumes")


def test_three_brokers_in_containers(containers: Containers) -> None:
    assert f"the console is at http://127.0.0.1:{containers.console}/console/#/?token=" in containers.make("up")
    containers.kcat("-P", "-t", TOPIC, "-X", "acks=all", text="".join(f"{number}\n" for number in range(100)))
    victim = containers.leader()
    run("docker", "kill", containers.container(victim))
    containers.kcat("-P", "-t", TOPIC, "-X", "acks=all", text="".join(f"{number}\n" for number in range(100, 200)))
    expected = [str(number) for number in range(200)]
    assert containers.kcat("-C", "-t", TOPIC, "-e", "-q").split() == expected
    run("docker", "start", containers.container(victim))
    assert run("docker", "exec", containers.container(victim), "id", "-u").strip() == "10001"
    containers.make("down")
    containers.make("up")
    assert containers.kcat("-C", "-t", TOPIC, "-e", "-q").split() == expected


def test_a_secure_cluster_in_containers(containers: Containers) -> None:
    assert f"the console is at https://127.0.0.1:{containers.console}/console/" in containers.make("up", "SECURE=1")
    try:
        conf = str(ROOT / "build/secure/admin.conf")
        run("kcat", "-F", conf, "-P", "-t", TOPIC, "-X", "acks=all", text="1\n2\n")
        assert run("kcat", "-F", conf, "-C", "-t", TOPIC, "-e", "-q").split() == ["1", "2"]
        containers.make("down", "SECURE=1")
        with pytest.raises(AssertionError, match="volumes belong to a cluster with logins"):
            containers.make("up")
        containers.make("up", "SECURE=1")
        assert run("kcat", "-F", conf, "-C", "-t", TOPIC, "-e", "-q").split() == ["1", "2"]
        assert run("docker", "exec", containers.container(1), "ls", "/etc/lowtide").split() == BROKER_FILES
    finally:
        containers.make("down", "SECURE=1", "ARGS=--volumes")

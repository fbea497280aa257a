"""docker-compose.yml and the Dockerfile: what `make up` starts, without starting it.

That the containers work is tried by `make interop`, where a Docker daemon answers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowtide.broker.config.broker_config import BROKER_KEYS
from lowtide.broker.config.sources import from_environment
from lowtide.metadata.etcd_address import parse_address

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS = ("broker-1", "broker-2", "broker-3")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = [line for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines() if line and not line.startswith("#")]
PAGE = (ROOT / "docs/compose.md").read_text(encoding="utf-8")


def settings(name: str) -> dict[str, str]:
    """The environment of a service, with the defaults of what `make up` may be given."""
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in SERVICES[name]["environment"].items()}


def test_the_services_are_an_etcd_and_three_brokers():
    assert set(SERVICES) == {"etcd", *BROKERS}


@pytest.mark.parametrize("name", ["etcd", *BROKERS])
def test_each_service_tells_its_health_and_keeps_its_data(name: str):
    """In a volume of its own that `docker compose` knows."""
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD", "the usual image of etcd has no shell"
    assert [volume.partition(":")[0] for volume in service["volumes"]] == [name]
    assert name in COMPOSE["volumes"]


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_waits_for_a_healthy_etcd_and_uses_it(name: str):
    service = SERVICES[name]
    assert service["depends_on"] == {"etcd": {"condition": "service_healthy"}}
    *words, address = service["command"]
    assert words == ["serve", "--metadata"]
    assert parse_address(address).endpoints == ("etcd:2379",)


@pytest.mark.parametrize("name", BROKERS)
def test_every_variable_is_a_key_of_a_broker(name: str):
    """A misspelt one would be refused at the start."""
    assert len(from_environment(settings(name), BROKER_KEYS)) == len(SERVICES[name]["environment"])


@pytest.mark.parametrize(("number", "port"), [(1, 9092), (2, 9093), (3, 9094)])
def test_addresses_inside_and_outside(number: int, port: int):
    """Other brokers reach one by the service's name, clients on this machine at the port that is published, on loopback alone."""
    name = f"broker-{number}"
    assert settings(name)["LOWTIDE_NODE_ID"] == str(number)
    inside, outside = settings(name)["LOWTIDE_ADVERTISED_LISTENERS"].split(",")
    assert inside == f"INSIDE://{name}:19092"
    assert outside == f"OUTSIDE://127.0.0.1:{port}"
    published = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", SERVICES[name]["ports"][0])
    listening = dict(text.split("://0.0.0.0:") for text in settings(name)["LOWTIDE_LISTENERS"].split(","))
    assert published == f"127.0.0.1:{port}:{listening['OUTSIDE']}"
    assert listening[settings(name)["LOWTIDE_INTER_BROKER_LISTENER_NAME"]] == "19092"


def test_the_health_check_asks_where_the_broker_listens():
    for name in BROKERS:
        code = SERVICES[name]["healthcheck"]["test"][-1]
        compile(code, name, "exec")
        assert "19092" in code


def test_the_base_image_is_a_build_argument():
    """First of all lines, used for every stage, with a default for those who have a registry."""
    assert re.fullmatch(r"ARG BASE_IMAGE=\S+", INSTRUCTIONS[0])
    assert {line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM ")} == {"${BASE_IMAGE}"}
    assert SERVICES["broker-1"]["build"]["args"]["BASE_IMAGE"] == "${BASE_IMAGE:-" + INSTRUCTIONS[0].partition("=")[2] + "}"


def test_the_image_needs_nothing_of_its_base_but_python():
    """No package manager, no shell at the start, and `python3`, which is what Debian calls it."""
    assert not re.search(r"\b(apt|apt-get|apk|curl|wget|useradd|adduser)\b", DOCKERFILE)
    assert re.findall(r"(?<![/\w-])python\b(?!:)", DOCKERFILE) == []
    assert [line for line in INSTRUCTIONS if line.startswith(("ENTRYPOINT", "CMD"))] == ['ENTRYPOINT ["lowtide"]', 'CMD ["serve"]']


def test_the_broker_is_nobody_special_and_is_stopped_in_order():
    """A number, so that a base without users does; and long enough before SIGKILL."""
    assert [line for line in INSTRUCTIONS if line.startswith("USER")] == ["USER 10001:10001"]
    assert "STOPSIGNAL SIGTERM" in INSTRUCTIONS
    assert all(SERVICES[name]["stop_grace_period"] == "60s" for name in BROKERS)


def test_the_image_is_made_of_the_package_and_nothing_else():
    """What .dockerignore lets through is what the package is built from; no wheel has the simulation."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    folders = {path.name for path in (ROOT / "src/lowtide").iterdir() if path.is_symlink()} - {"simulation"}
    assert "*" in ignored
    assert let_through == folders | {"src", "build/wheels", "pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE"}


def test_the_page_names_every_variable():
    """Those that `make up` passes on, and no others."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"`([A-Z][A-Z_0-9]+)`", PAGE)) - {"LOWTIDE_LOG_RETENTION_MS", "LOWTIDE_ADVERTISED_LISTENERS"} == set(
        re.findall(r"\$\{(\w+):-", text)
    )

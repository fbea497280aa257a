"""docker-compose.yml and the Dockerfile: what `make up` starts, without starting it.

`make interop` tests the containers, if a Docker daemon runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowtide.broker.config.broker_config import BROKER_KEYS, load_config
from lowtide.broker.config.sources import from_environment
from lowtide.broker.lifecycle.secure_material import SHARED
from lowtide.cli.console_server import HEALTH
from lowtide.metadata.etcd_address import parse_address

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
SECURE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.secure.yml").read_text(encoding="utf-8"))
"""What `make up SECURE=1` lays over it: a list of words replaces one, mappings and volumes are joined."""

BROKERS = ("broker-1", "broker-2", "broker-3")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = [line for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines() if line and not line.startswith("#")]
PAGE = (ROOT / "docs/compose.md").read_text(encoding="utf-8")


def settings(name: str) -> dict[str, str]:
    """The environment of a service, with the defaults of the variables of `make up`."""
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in SERVICES[name]["environment"].items()}


OBSERVING = ("observer", "prometheus", "grafana")


def test_the_services_are_an_etcd_three_brokers_and_a_console():
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {"etcd", *BROKERS, "console"}


def test_the_others_observe_and_are_started_by_their_profile_alone():
    """They log in as a user whose password no broker has, and listen on this machine alone."""
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["observe"]} == set(OBSERVING)
    for name in OBSERVING:
        assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))
        for volume in SERVICES[name]["volumes"]:
            place = volume.partition(":")[0]
            assert (ROOT / place).is_dir() if place.startswith("./") else place in COMPOSE["volumes"], volume
    assert "observer:/run/observer:ro" in SERVICES["prometheus"]["volumes"]
    scrape = yaml.safe_load((ROOT / "observability/prometheus/compose.yml").read_text(encoding="utf-8"))[
        "scrape_configs"
    ][0]
    assert scrape["basic_auth"] == {"username": "prometheus", "password_file": "/run/observer/password"}
    assert [each["targets"] for each in scrape["static_configs"]] == [[f"{name}:9644"] for name in BROKERS]


@pytest.mark.parametrize("name", ["etcd", *BROKERS])
def test_each_service_reports_its_health_and_keeps_its_data(name: str):
    """The data is in its own volume, which `docker compose` manages."""
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
    """A misspelt variable would be refused at the start."""
    assert len(from_environment(settings(name), BROKER_KEYS)) == len(SERVICES[name]["environment"])


@pytest.mark.parametrize(("number", "port"), [(1, 9092), (2, 9093), (3, 9094)])
def test_addresses_inside_and_outside(number: int, port: int):
    """Other brokers use the service's name, clients on this machine use the published port, on loopback only."""
    name = f"broker-{number}"
    assert settings(name)["LOWTIDE_NODE_ID"] == str(number)
    inside, outside = settings(name)["LOWTIDE_ADVERTISED_LISTENERS"].split(",")
    assert inside == f"INSIDE://{name}:19092"
    assert outside == f"OUTSIDE://127.0.0.1:{port}"
    published, http = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", each) for each in SERVICES[name]["ports"])
    assert http == f"127.0.0.1:{9643 + number}:9644", "the console and the metrics"
    listening = dict(text.split("://0.0.0.0:") for text in settings(name)["LOWTIDE_LISTENERS"].split(","))
    assert published == f"127.0.0.1:{port}:{listening['OUTSIDE']}"
    assert listening[settings(name)["LOWTIDE_INTER_BROKER_LISTENER_NAME"]] == "19092"


def options(words: list[str]) -> dict[str, str]:
    """The options of a command, with the defaults of the variables of `make up`."""
    found = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word).partition("=") for word in words[1:])
    return {name: value for name, _, value in found}


def test_the_console_is_for_this_machine_and_those_with_its_address():
    """Without logins of the cluster the token in its address is the login."""
    service = SERVICES["console"]
    given = options(service["command"])
    host, port = given["--listen"].split(":")
    assert (service["command"][0], host, given["--login"]) == ("console", "0.0.0.0", "token")
    assert given["--bootstrap-server"].split(",") == [f"{name}:19092" for name in BROKERS]
    published = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", each) for each in service["ports"]]
    assert published == [f"127.0.0.1:{port}:{port}"], "the same port, so that the printed address is right"
    code = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["healthcheck"]["test"][-1])
    compile(code, "console", "exec")
    assert f"http://127.0.0.1:{port}{HEALTH}" in code
    assert service["image"] == SERVICES["broker-1"]["image"]


def test_visitors_of_a_secure_console_log_in_as_users_of_the_cluster():
    """It has no login of its own, and of the certificates only its own."""
    service = SECURE["services"]["console"]
    given = options(service["command"])
    assert given["--login"] == "cluster"
    assert service["volumes"] == ["secure-console:/etc/lowtide:ro"]
    for option in ("--command-config", "--tls-cert"):
        assert given[option].removeprefix("/etc/lowtide/") in SHARED["console"]
    assert given["--listen"] == options(SERVICES["console"]["command"])["--listen"]
    code = service["healthcheck"]["test"][-1]
    compile(code, "console", "exec")
    assert f"{HEALTH}'" in code
    assert "https://127.0.0.1:" in code


READY = "http://127.0.0.1:{}/health/ready"


def test_the_health_check_asks_whether_the_broker_is_ready():
    """At a listener on the container's loopback, where no login is needed; with TLS and logins too.

    The image alone has the same check.
    """
    for name in BROKERS:
        code = SERVICES[name]["healthcheck"]["test"][-1]
        compile(code, name, "exec")
        assert READY.format(9643) in code
        assert settings(name)["LOWTIDE_HTTP_LISTENERS"] == "http://127.0.0.1:9643,http://0.0.0.0:9644"
        assert "http://127.0.0.1:9643" in SECURE["services"][name]["environment"]["LOWTIDE_HTTP_LISTENERS"].split(",")
        assert "healthcheck" not in SECURE["services"][name]
    (check,) = [line for line in INSTRUCTIONS if line.startswith("HEALTHCHECK")]
    assert READY.format(9644) in check


def test_the_images_below_are_build_arguments():
    """The first lines have defaults for users of a registry: the same Python, and a compiler in the first stage."""
    names = ("BUILD_IMAGE", "BASE_IMAGE")
    defaults = dict(line.removeprefix("ARG ").split("=") for line in INSTRUCTIONS[:2])
    assert tuple(defaults) == names
    assert defaults["BASE_IMAGE"] == defaults["BUILD_IMAGE"] + "-slim"
    assert [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM ")] == [f"${{{name}}}" for name in names]
    arguments = SERVICES["broker-1"]["build"]["args"]
    assert [arguments[name] for name in names] == [f"${{{name}:-{defaults[name]}}}" for name in names]


def test_the_image_needs_nothing_of_its_base_but_python():
    """No package manager, no shell at the start, and `python3`, the name in Debian."""
    assert not re.search(r"\b(apt|apt-get|apk|curl|wget|useradd|adduser)\b", DOCKERFILE)
    assert re.findall(r"(?<![/\w-])python\b(?!:)", DOCKERFILE) == []
    assert [line for line in INSTRUCTIONS if line.startswith(("ENTRYPOINT", "CMD"))] == [
        'ENTRYPOINT ["lowtide"]',
        'CMD ["serve"]',
    ]


def test_the_broker_runs_without_privileges_and_is_stopped_in_order():
    """The user is a number, so that a base image without users is enough; the time before SIGKILL is long enough."""
    assert [line for line in INSTRUCTIONS if line.startswith("USER")] == ["USER 10001:10001"]
    assert "STOPSIGNAL SIGTERM" in INSTRUCTIONS
    assert all(SERVICES[name]["stop_grace_period"] == "60s" for name in BROKERS)


def test_the_image_has_only_the_package():
    """.dockerignore admits only the sources of the package, and wheels; no wheel has the simulation."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    folders = {path.name for path in (ROOT / "src/lowtide").iterdir() if path.is_symlink()} - {"simulation"}
    assert "*" in ignored
    assert let_through == folders | {
        "src",
        "build/wheels",
        "dist",
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",
        "README.md",
        "LICENSE",
    }


def test_the_page_names_every_variable():
    """The variables that `make up` passes on, and no others."""
    text = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", "docker-compose.secure.yml")
    )
    assert set(re.findall(r"`([A-Z][A-Z_0-9]+)`", PAGE)) - {
        "LOWTIDE_LOG_RETENTION_MS",
        "LOWTIDE_ADVERTISED_LISTENERS",
        "DAC_OVERRIDE",
    } == set(re.findall(r"\$\{(\w+):-", text))


# ------------------------------------------------------------------ make up SECURE=1
def test_a_secure_cluster_has_the_same_services_and_one_that_makes_certificates():
    assert set(SECURE["services"]) == {"certificates", "etcd", *BROKERS, "console", "observer", "prometheus"}
    plain, secure = (
        (ROOT / f"observability/prometheus/{name}.yml").read_text(encoding="utf-8")
        for name in ("compose", "compose-secure")
    )
    expected = yaml.safe_load(plain)
    expected["scrape_configs"][0] |= {"scheme": "https", "tls_config": {"ca_file": "/run/observer/ca.pem"}}
    assert yaml.safe_load(secure) == expected, "the same scrape, over TLS"
    assert "/etc/prometheus/compose-secure.yml" in SECURE["services"]["prometheus"]["command"][0]
    assert SECURE["version"] == COMPOSE["version"], "the older compose wants one version"
    assert SECURE["services"]["certificates"]["image"] == SERVICES["broker-1"]["image"]


@pytest.mark.parametrize("name", BROKERS)
def test_a_secure_broker_listens_with_logins_alone_and_cannot_write_its_certificates(name: str):
    service = SECURE["services"][name]
    given = from_environment(settings(name) | service["environment"], BROKER_KEYS)
    assert given["listener.security.protocol.map"].text == "INSIDE:SASL_SSL,OUTSIDE:SASL_SSL"
    assert service["volumes"] == ["secure-brokers:/etc/lowtide:ro"]


def test_the_etcd_takes_certificates_alone_and_is_otherwise_the_same():
    open_words, words = SERVICES["etcd"]["command"], SECURE["services"]["etcd"]["command"]
    assert "--client-cert-auth" in words
    assert not any("http://" in word for word in words)
    kept = [word for word in open_words if "http://" not in word]
    assert [word for word in words if word in kept] == kept


def test_who_serves_sees_no_secret_of_others():
    """No running service has the authority's key and the administrator's password of the volume `secure`."""
    holders = {
        name
        for name, service in SECURE["services"].items()
        if any(each.startswith("secure:") for each in service.get("volumes", ()))
    }
    assert holders == {"certificates", "observer"}, "these two end when they have done their work"
    assert SECURE["services"]["etcd"]["volumes"] == ["secure-etcd:/etc/lowtide:ro"]
    folders = {f"secure-{name}:/etc/lowtide/{name}" for name in SHARED}
    assert set(SECURE["services"]["certificates"]["volumes"]) == folders | {"secure:/etc/lowtide"}
    assert all(f"/etc/lowtide/{name}" in DOCKERFILE for name in SHARED)


@pytest.mark.parametrize("service", ["etcd", *BROKERS, "console", "certificates"])
def test_a_container_can_do_little(service: str):
    """Its root file system is read-only, it has no right of root, and gains none."""
    found = SERVICES.get(service) or SECURE["services"][service]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found.get("cap_add", []) == (["DAC_OVERRIDE"] if service == "etcd" else [])


def test_certificates_are_for_the_names_by_which_services_are_reached():
    words = SECURE["services"]["certificates"]["command"]
    assert [word.partition("=")[2] for word in words if word.startswith("--host=")] == list(BROKERS)
    assert "--etcd-host=etcd" in words
    assert "--console-host=console" in words
    assert f"--listener={settings('broker-1')['LOWTIDE_INTER_BROKER_LISTENER_NAME']}" in words
    published = [SERVICES[name]["ports"][0].removesuffix(":9092") for name in BROKERS]
    assert f"--bootstrap-server={','.join(published)}" in words


def test_no_secret_is_in_the_files():
    """Certificates and passwords are in a volume, which the containers create."""
    for name in ("docker-compose.yml", "docker-compose.secure.yml", "Dockerfile", "Makefile"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"BEGIN (CERTIFICATE|.*KEY)|(?i:password)[=:] *[\w\"]", text), name
    assert "chown -R 10001:10001 /var/lib/lowtide /etc/lowtide" in DOCKERFILE


def test_the_image_says_what_it_is_and_works_as_it_is():
    """OCI labels; a broker without an advertised address returns the one that the client used."""
    (labels,) = [line for line in INSTRUCTIONS if line.startswith("LABEL ")]
    names = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", labels))
    assert names == {"title", "description", "licenses", "version"}
    (variables,) = [line.removeprefix("ENV ").split() for line in INSTRUCTIONS if line.startswith("ENV ")]
    given = from_environment(dict(each.split("=", 1) for each in variables), BROKER_KEYS)
    assert load_config(given=given).advertises_local_address
    assert any(line.startswith("HEALTHCHECK ") for line in INSTRUCTIONS)


@pytest.mark.parametrize("name", BROKERS)
def test_brokers_of_the_cluster_name_their_addresses_themselves(name: str):
    assert "LOWTIDE_ADVERTISED_LISTENERS" in settings(name)

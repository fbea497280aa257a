"""The manifest for Kubernetes: its settings are keys of a broker, and its parts fit together.

`make interop` has the schemas.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowtide.broker.config.broker_config import BROKER_KEYS, load_config
from lowtide.broker.config.sources import from_environment
from lowtide.cli.console_server import HEALTH
from lowtide.metadata.etcd_address import parse_address

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = list(yaml.safe_load_all((ROOT / "packaging/kubernetes/lowtide.yaml").read_text(encoding="utf-8")))
PARTS: dict[tuple[str, str], Any] = {(part["kind"], part["metadata"]["name"]): part for part in MANIFEST}
BROKERS = PARTS["StatefulSet", "lowtide"]["spec"]
POD = BROKERS["template"]["spec"]
(CONTAINER,) = POD["containers"]
CONSOLE = "lowtide-console"
CONSOLE_POD = PARTS["Deployment", CONSOLE]["spec"]["template"]
(CONSOLE_CONTAINER,) = CONSOLE_POD["spec"]["containers"]
OF_THE_POD = {
    "metadata.name": "lowtide-2",
    "metadata.namespace": "default",
    "metadata.labels['apps.kubernetes.io/pod-index']": "2",
}


def environment() -> dict[str, str]:
    """What the container of the third pod gets: `$(NAME)` is a variable that stands before it."""
    found: dict[str, str] = {}
    for each in CONTAINER["env"]:
        value = each["value"] if "value" in each else OF_THE_POD[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def test_the_configuration_is_a_broker_s() -> None:
    """Each with the number of its pod, at a name that the headless Service gives it."""
    given = from_environment(
        {name: value for name, value in environment().items() if name.startswith("LOWTIDE_")}, BROKER_KEYS
    )
    config = load_config(given=given)
    assert config.node_id == 2
    (advertised,) = config.advertised_listeners
    assert advertised.address == f"lowtide-2.{BROKERS['serviceName']}.default.svc:9092"
    assert config.min_insync_replicas < config.default_replication_factor <= BROKERS["replicas"]
    assert CONTAINER["args"][:2] == ["serve", "--metadata"]
    assert parse_address(CONTAINER["args"][2]).endpoints == ("etcd:2379",)
    assert not POD["enableServiceLinks"], "its variables would look like keys"


def test_everything_selects_the_same_pods() -> None:
    labels = BROKERS["template"]["metadata"]["labels"]
    assert BROKERS["selector"]["matchLabels"] == labels
    for (kind, name), part in PARTS.items():
        if kind == "Service" and name != CONSOLE:
            assert part["spec"]["selector"] == labels
            assert [port["targetPort"] for port in part["spec"]["ports"]] == [
                port["name"] for port in CONTAINER["ports"]
            ]
            assert part["spec"]["publishNotReadyAddresses"], "brokers are not ready while any replica is behind"
    assert PARTS["Service", BROKERS["serviceName"]]["spec"]["clusterIP"] == "None"
    assert PARTS["PodDisruptionBudget", "lowtide"]["spec"]["selector"]["matchLabels"] == labels


def test_an_update_waits_for_replicas_and_a_start_for_none() -> None:
    assert BROKERS["updateStrategy"]["type"] == "RollingUpdate"
    assert BROKERS["podManagementPolicy"] == "Parallel"
    assert PARTS["PodDisruptionBudget", "lowtide"]["spec"]["maxUnavailable"] == 1
    assert "/health/ready?in_sync'" in CONTAINER["readinessProbe"]["exec"]["command"][-1]
    assert POD["terminationGracePeriodSeconds"] > 60


@pytest.mark.parametrize("name", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_are_programs_that_end_in_time(name: str) -> None:
    """They ask the listener that the broker has for its own machine."""
    program, option, code = CONTAINER[name]["exec"]["command"]
    assert (program, option) == ("python3", "-c")
    compile(code, name, "exec")
    assert environment()["LOWTIDE_HTTP_LISTENERS"] in code
    assert CONTAINER[name]["timeoutSeconds"] > 3


def test_the_user_is_that_of_the_image() -> None:
    """Only its volumes are written to."""
    user = f"USER {POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert user in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    mounted = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert set(mounted) == {each["name"] for each in POD["volumes"]} | {
        each["metadata"]["name"] for each in BROKERS["volumeClaimTemplates"]
    }
    assert environment()["LOWTIDE_LOG_DIRS"].startswith(mounted["data"])


def test_the_console_is_apart_from_the_brokers() -> None:
    """Its labels are its own, so that no client of brokers reaches it; it uses the brokers' Service."""
    labels = CONSOLE_POD["metadata"]["labels"]
    assert labels != BROKERS["template"]["metadata"]["labels"]
    service = PARTS["Service", CONSOLE]["spec"]
    assert service["selector"] == labels == PARTS["Deployment", CONSOLE]["spec"]["selector"]["matchLabels"]
    (port,) = CONSOLE_CONTAINER["ports"]
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    words = CONSOLE_CONTAINER["args"]
    assert words[0] == "console"
    assert f"--listen=0.0.0.0:{port['containerPort']}" in words
    (client,) = PARTS["Service", "lowtide"]["spec"]["ports"]
    assert f"--bootstrap-server=lowtide:{client['port']}" in words
    assert PARTS["Deployment", CONSOLE]["spec"]["replicas"] == 1, "sessions are in its memory"
    assert CONSOLE_CONTAINER["image"] == CONTAINER["image"]


def test_the_console_can_do_little_and_is_probed_without_a_login() -> None:
    for key in ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile"):
        assert CONSOLE_POD["spec"]["securityContext"][key] == POD["securityContext"][key]
    assert CONSOLE_CONTAINER["securityContext"] == CONTAINER["securityContext"]
    for name in ("livenessProbe", "readinessProbe"):
        assert CONSOLE_CONTAINER[name]["httpGet"] == {"path": HEALTH, "port": "http"}

"""Runs only with `make interop`, with Java and Maven, or Go; with CI_INTEROP=1 they are required."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_ports

from .franz_go import FranzGo, build
from .kafka import VERSION, Kafka, fetch_jars
from .lowtide_process import LowtideProcess
from .secured_kafka import SecuredKafka
from .tools import JavaClient, Tools


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that were not requested."""
    if "interop" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("interop"):
            item.add_marker(pytest.mark.skip(reason="needs a JVM or Go: run `make interop`"))


@pytest.fixture(scope="session")
def kafka_version(request: pytest.FixtureRequest) -> str:
    """Kafka's version; `EACH_VERSION` makes a test run with each of several."""
    return getattr(request, "param", VERSION)


@pytest.fixture(scope="session")
def jars(kafka_version: str) -> Path:
    """The folder of Kafka's jars."""
    missing = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
    if missing and os.environ.get("CI_INTEROP") != "1":
        pytest.skip(f"{' and '.join(missing)} not installed")
    assert not missing, f"CI_INTEROP=1, but {' and '.join(missing)} not installed"
    return fetch_jars(kafka_version)


@pytest.fixture
def kafka(jars: Path, tmp_path: Path) -> Iterator[Kafka]:
    """A Kafka node that is formatted but not started."""
    node = Kafka(jars, tmp_path / "kafka", free_ports(2))
    yield node
    node.stop()


@pytest.fixture(scope="module")
def secured(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A running Kafka node whose clients may log in, with TLS and without."""
    made = SecuredKafka(jars, tmp_path_factory.mktemp("kafka") / "node")
    made.node.start()
    yield made
    made.node.stop()


@pytest.fixture(scope="module")
def broker(kafka_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A running `lowtide serve`, a new one for each version of Kafka."""
    assert kafka_version
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def tools(jars: Path, broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Kafka's command line tools, against `broker`."""
    return Tools(jars, broker.bootstrap, tmp_path_factory.mktemp("jvm"))


@pytest.fixture(scope="module")
def java_client(jars: Path, broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """Our program with Kafka's Java client, against `broker`."""
    return JavaClient(jars, broker.bootstrap, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def franz_go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with franz-go, built."""
    if shutil.which("go") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but go not installed"
        pytest.skip("go not installed")
    return build(tmp_path_factory.mktemp("franz-go"))


@pytest.fixture
def go(franz_go_program: Path, broker: LowtideProcess) -> FranzGo:
    """Our program with franz-go, against `broker`."""
    return FranzGo(franz_go_program, broker.bootstrap)

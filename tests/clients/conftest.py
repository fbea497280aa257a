"""Fixtures: the broker's address (from `lowtide.testing.plugin`), the clients, topics."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException

from .driver import Driver, until
from .driver_aiokafka import Aiokafka
from .driver_confluent import Confluent
from .driver_kafka_python import KafkaPython
from .driver_kcat import Kcat

CLIENTS: dict[str, Callable[[str], Driver]] = {kind.name: kind for kind in (Kcat, Confluent, KafkaPython, Aiokafka)}
LIBRARIES = [name for name in CLIENTS if name != Kcat.name]

NOT_YET = (KafkaException,)
"""A broker needs a moment to lead a new partition; until then the look-up returns an error."""


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Driver:
    """Each client in turn; kcat only if it is installed, which CI requires."""
    if request.param == Kcat.name and shutil.which("kcat") is None and not os.environ.get("CI"):
        pytest.skip("kcat is not installed")
    return CLIENTS[request.param](lowtide.bootstrap)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Driver:
    """Each client except kcat, in turn: those that can create topics, delete records and set a record's time."""
    return CLIENTS[request.param](lowtide.bootstrap)


@pytest.fixture(scope="session")
def other(lowtide: SimpleNamespace) -> Driver:
    """A client for steps that a test needs but does not check."""
    return Confluent(lowtide.bootstrap)


def new_topic(other: Driver, name: str, configs: dict[str, str]) -> str:
    """Returns a topic of three empty partitions that are ready to be used."""
    other.create_topic(name, 3, configs)
    until(lambda: other.offsets(name, range(3)) == dict.fromkeys(range(3), (0, 0)), but=NOT_YET)
    return name


@pytest.fixture
def topic(other: Driver, lowtide_topic: str) -> str:
    """A new topic of three partitions; its records may have any age."""
    return new_topic(other, lowtide_topic, {"retention.ms": "-1"})


@pytest.fixture
def plain_topic(other: Driver, lowtide_topic: str) -> str:
    """A new topic of three partitions without its own configuration."""
    return new_topic(other, lowtide_topic, {})

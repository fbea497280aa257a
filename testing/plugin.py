"""pytest fixtures: brokers for a session, and names of topics.

`lowtide` is one broker, `lowtide_cluster` are three, `lowtide_secure` is one with TLS and logins; `lowtide_topic` is a name for a topic.
`lowtide_config` is what all of them are configured with: a `conftest.py` that defines it again has brokers of its own kind.
Registered as a pytest plugin by the package; imports the broker only when a fixture is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lowtide.testing.cluster import LowtideCluster

_LONGEST_TOPIC_STEM = 100


@pytest.fixture(scope="session")
def lowtide_config() -> Mapping[str, str | float | bool]:
    """Keys of the brokers' configuration with texts, numbers, True or False; none here. Define it in a `conftest.py` to have others."""
    return {}


@pytest.fixture(scope="session")
def lowtide(lowtide_config: Mapping[str, str | float | bool]) -> Iterator[LowtideCluster]:
    """A running broker: `lowtide.bootstrap` is its address."""
    from lowtide.testing.cluster import LowtideCluster

    with LowtideCluster(config=lowtide_config) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lowtide_cluster(lowtide_config: Mapping[str, str | float | bool]) -> Iterator[LowtideCluster]:
    """Three running brokers: `lowtide_cluster.bootstrap` are their addresses. A test that stops one starts it again."""
    from lowtide.testing.cluster import LowtideCluster

    with LowtideCluster(brokers=3, config=lowtide_config) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lowtide_secure(lowtide_config: Mapping[str, str | float | bool]) -> Iterator[LowtideCluster]:
    """A running broker with TLS, logins and an authorizer: `lowtide_secure.for_confluent_kafka` are settings of its administrator."""
    from lowtide.testing.cluster import LowtideCluster

    with LowtideCluster(secure=True, config=lowtide_config) as cluster:
        yield cluster


@pytest.fixture
def lowtide_topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own. The test creates the topic itself."""
    stem = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_LONGEST_TOPIC_STEM]
    return f"{stem}-{uuid.uuid4().hex[:8]}"

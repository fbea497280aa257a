"""pytest fixtures: `lowtide`, a broker for the session, `lowtide_cluster`, three of them, and `lowtide_topic`, a name for a topic.

Registered as a pytest plugin by the package; imports the broker only when a fixture is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lowtide.testing.cluster import LowtideCluster

_LONGEST_TOPIC_STEM = 100


@pytest.fixture(scope="session")
def lowtide() -> Iterator[LowtideCluster]:
    """A running broker: `lowtide.bootstrap` is its address."""
    from lowtide.testing.cluster import LowtideCluster

    with LowtideCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lowtide_cluster() -> Iterator[LowtideCluster]:
    """Three running brokers: `lowtide_cluster.bootstrap` are their addresses. A test that stops one starts it again."""
    from lowtide.testing.cluster import LowtideCluster

    with LowtideCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def lowtide_topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own. The test creates the topic itself."""
    stem = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_LONGEST_TOPIC_STEM]
    return f"{stem}-{uuid.uuid4().hex[:8]}"

"""pytest fixtures: brokers for a session, and names of topics.

`lowtide` is one broker, `lowtide_cluster` are three, `lowtide_secure` is one with TLS and logins; `lowtide_topic` is a
name for a topic. `lowtide_config` is what all of them are configured with: a `conftest.py` that defines it again has
brokers of its own kind. So has one that defines `lowtide_in_process`. When a test fails, its report has what the
brokers logged since the test began. Registered as a pytest plugin by the package; imports the broker only when a
fixture is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lowtide.testing.cluster import LowtideCluster

_LONGEST_TOPIC_STEM = 100
_LINES_SHOWN_MAX = 200

_CLUSTERS: pytest.StashKey[list[LowtideCluster]] = pytest.StashKey()
"""Of the session: those of the fixtures."""

_LOGGED: pytest.StashKey[list[int]] = pytest.StashKey()
"""Of a test: how much each of these had logged when it began."""


@pytest.fixture(scope="session")
def lowtide_config() -> Mapping[str, str | float | bool]:
    """Keys of the brokers' configuration with texts, numbers, True or False; none here.

    Define it in a `conftest.py` to have others.
    """
    return {}


@pytest.fixture(scope="session")
def lowtide_in_process() -> bool:
    """Whether the brokers run in the tests' process.

    False here, so that what a test does to its process does not affect them.
    """
    return False


def _running(request: pytest.FixtureRequest, **given: Any) -> Iterator[LowtideCluster]:
    from lowtide.testing.cluster import LowtideCluster

    config, in_process = request.getfixturevalue("lowtide_config"), request.getfixturevalue("lowtide_in_process")
    with LowtideCluster(config=config, in_process=in_process, **given) as cluster:
        request.config.stash.setdefault(_CLUSTERS, []).append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def lowtide(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """A running broker: `lowtide.bootstrap` is its address, `lowtide.reset()` forgets everything."""
    yield from _running(request)


@pytest.fixture(scope="session")
def lowtide_cluster(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """Three running brokers: `lowtide_cluster.bootstrap` are their addresses. A test that stops one starts it again."""
    yield from _running(request, brokers=3)


@pytest.fixture(scope="session")
def lowtide_secure(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """A running broker with TLS, logins and an authorizer.

    `lowtide_secure.for_confluent_kafka` logs in as administrator.
    """
    yield from _running(request, secure=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes how much has been logged before the test."""
    item.stash[_LOGGED] = [cluster.log_size for cluster in item.config.stash.setdefault(_CLUSTERS, [])]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Adds to the report of a test that failed what the brokers logged meanwhile."""
    report = (yield).get_result()
    if not report.failed:
        return
    before = item.stash.get(_LOGGED, [])
    clusters = item.config.stash.setdefault(_CLUSTERS, [])
    for index, cluster in enumerate(clusters):
        lines = cluster.log(before[index] if index < len(before) else 0).splitlines()
        if lines:
            shown = (
                [f"… {len(lines) - _LINES_SHOWN_MAX} lines before", *lines[-_LINES_SHOWN_MAX:]]
                if len(lines) > _LINES_SHOWN_MAX
                else lines
            )
            report.sections.append((f"Lowtide at {cluster.bootstrap}", "\n".join(shown)))


@pytest.fixture
def lowtide_topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own. The test creates the topic itself."""
    stem = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_LONGEST_TOPIC_STEM]
    return f"{stem}-{uuid.uuid4().hex[:8]}"

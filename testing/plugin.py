"""pytest fixtures: brokers for a session, and names of topics.

`lowtide` is one broker, `lowtide_cluster` are three, `lowtide_secure` is one with TLS and logins; `lowtide_topic` is a
name for a topic. A `conftest.py` can redefine `lowtide_config`, the configuration of all brokers, and
`lowtide_in_process`. The report of a failed test has the lines that the brokers logged during the test. The package
registers this plugin; it imports the broker only for a fixture.
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
"""The clusters of a session."""

_LOGGED: pytest.StashKey[list[int]] = pytest.StashKey()
"""The log size of each cluster when a test began."""


@pytest.fixture(scope="session")
def lowtide_config() -> Mapping[str, str | float | bool]:
    """Configuration keys of the brokers, with texts, numbers, True or False; by default none.

    Redefine it in a `conftest.py`.
    """
    return {}


@pytest.fixture(scope="session")
def lowtide_in_process() -> bool:
    """Returns whether the brokers run in the tests' process; by default they have their own."""
    return False


def _running(request: pytest.FixtureRequest, **given: Any) -> Iterator[LowtideCluster]:
    from lowtide.testing.cluster import LowtideCluster

    config, in_process = request.getfixturevalue("lowtide_config"), request.getfixturevalue("lowtide_in_process")
    with LowtideCluster(config=config, in_process=in_process, **given) as cluster:
        request.config.stash.setdefault(_CLUSTERS, []).append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def lowtide(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """A running broker: `lowtide.bootstrap` is its address, `lowtide.reset()` removes everything."""
    yield from _running(request)


@pytest.fixture(scope="session")
def lowtide_cluster(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """Three running brokers: `lowtide_cluster.bootstrap` has their addresses. Start a stopped broker again."""
    yield from _running(request, brokers=3)


@pytest.fixture(scope="session")
def lowtide_secure(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    """A running broker with TLS, logins and an authorizer.

    `lowtide_secure.for_confluent_kafka` logs in as administrator.
    """
    yield from _running(request, secure=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes the log sizes before a test."""
    item.stash[_LOGGED] = [cluster.log_size for cluster in item.config.stash.setdefault(_CLUSTERS, [])]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Adds the brokers' log lines to the report of a failed test."""
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
    """A unique topic name. The test creates the topic."""
    stem = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_LONGEST_TOPIC_STEM]
    return f"{stem}-{uuid.uuid4().hex[:8]}"

"""The fixtures of the package in a project of a user: with the `conftest.py` of the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

CONFIGURED = """
from confluent_kafka.admin import AdminClient, NewTopic


def test_partitions(lowtide, lowtide_topic):
    admin = AdminClient(lowtide.for_confluent_kafka)
    assert lowtide_topic not in admin.list_topics(timeout=60).topics
    admin.create_topics([NewTopic(lowtide_topic)])[lowtide_topic].result(60)
    assert len(admin.list_topics(timeout=60).topics[lowtide_topic].partitions) == 3
"""

FROM_A_CONTAINER = """
from confluent_kafka import Producer


def test_delivery(bootstrap_servers):
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(3):
        producer.produce("t", b"hello", partition=partition)
    assert producer.flush(60) == 0
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "fixture", "test"),
    [
        ("testing.md", "def lowtide_config", CONFIGURED),
        pytest.param("from-testcontainers.md", "def bootstrap_servers", FROM_A_CONTAINER, marks=pytest.mark.slow),
    ],
)
def test_a_project_configures_its_brokers(tmp_path: Path, page: str, fixture: str, test: str) -> None:
    """With the `conftest.py` of the page, as it stands there."""
    (conftest,) = [block for block in blocks(page) if fixture in block]
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_project.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

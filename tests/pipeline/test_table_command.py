"""`lowtide table run` and `status` as a user calls them, with Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.pipeline.table.trimming import GROUPS_KEY, groups_of_topic
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition

from .local_spark import python_environment
from .table_jobs import TABLE, LocalJobs

LIMIT_S = 600


class Command:
    """A command of `lowtide`, with its lines as they come."""

    def __init__(self, folder: Path, *words: str) -> None:
        import os

        env = {**os.environ, **python_environment(folder)}
        command = [sys.executable, "-m", "lowtide.cli.main", *words]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors: list[str] = []
        self._thread = threading.Thread(target=lambda: self.errors.extend(self.process.stderr))
        self._thread.start()

    def line(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, str]:
        rest = self.process.stdout.read()
        code = self.process.wait(LIMIT_S)
        self._thread.join(LIMIT_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, rest


def lowtide_command(folder: Path, *words: str) -> str:
    command = Command(folder, *words)
    code, rest = command.end()
    assert code == 0, "".join(command.errors)
    return rest


@pytest.mark.slow
def test_topics_are_written_until_the_job_is_stopped(lowtide: SimpleNamespace, topic: str, fill, tmp_path: Path):
    where = ["-b", lowtide.bootstrap, "--catalog", f"sqlite:///{tmp_path}/catalog.db", "--table", TABLE]
    fill(topic, {0: 30, 1: 10})
    words = ["--every", "1s", "--trim", "--trim-after", "0s", "--master", "local[2]", "--partition-by", "day"]
    job = Command(tmp_path, "table", "run", topic, *where, *words, "-o", "json")
    try:
        first = job.line()
        assert (first["outcome"], first["rows"], first["offsets"]) == ("committed", 40, {"0": 30, "1": 10})
        while job.line()["outcome"] != "idle":
            pass
        fill(topic, {0: 5})
        while (second := job.line())["outcome"] == "idle":
            pass
        assert second["rows"] == 5
        job.process.send_signal(signal.SIGTERM)
        code, _ = job.end()
        assert code == 0, "".join(job.errors)
    finally:
        job.process.kill()
        job.process.wait(LIMIT_S)
    jobs = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    try:
        assert len(jobs.offsets()) == 45
        assert jobs.table().properties["lowtide.schema"] == "raw", "no value is a JSON object"
    finally:
        jobs.close()
    status = json.loads(lowtide_command(tmp_path, "table", "status", *where, "-o", "json"))
    assert (status["topic"], status["rows"], status["is_same_topic"]) == (topic, 45, True)
    assert status["partitions"][0] == {"partition": 0, "log_start": 35, "table_until": 35, "log_end": 35}
    told = lowtide_command(tmp_path, "topics", "explain", topic, *where)
    assert f"0: kept: the table {TABLE} has up to offset 35." in told


@pytest.mark.slow
def test_an_unknown_topic_is_said_at_once(lowtide: SimpleNamespace, tmp_path: Path):
    where = ["-b", lowtide.bootstrap, "--catalog", f"sqlite:///{tmp_path}/catalog.db", "--table", TABLE]
    command = Command(tmp_path, "table", "run", "no-such-topic", *where, "--once")
    code, _ = command.end()
    assert (code, command.errors[-1]) == (2, "lowtide table run: topic no-such-topic does not exist.\n")


def test_trimming_waits_for_the_groups_that_the_topic_names(lowtide: SimpleNamespace, topic: str, fill):
    """Their retention by consumption would be worth nothing if a table's trim passed them."""
    fill(topic, {0: 3})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    with BlockingAdminClient(lowtide.bootstrap) as admin:
        assert groups_of_topic(admin, topic) == ()
        change = ConfigChange(GROUPS_KEY, "audit,report-*")
        assert admin.alter_configs({resource: [change]}) == {resource: None}
        admin.alter_group_offsets(f"report-{topic}", {TopicPartition(topic, 0): 1})
        assert {"audit", f"report-{topic}"} <= set(groups_of_topic(admin, topic))
        with pytest.raises(AdminError):
            groups_of_topic(admin, "no-such-topic")

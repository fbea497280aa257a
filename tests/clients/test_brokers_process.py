"""`LowtideCluster` runs its brokers in a process of their own, which the test's process cannot disturb."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from freezegun import freeze_time

from lowtide import LowtideCluster
from lowtide.broker.config.key import ConfigError
from lowtide.testing.brokers_process import ProcessOfBrokers

LIMIT_S = 60


def topics(cluster: LowtideCluster) -> set[str]:
    return set(AdminClient(cluster.for_confluent_kafka).list_topics(timeout=LIMIT_S).topics)


def produce(cluster: LowtideCluster, topic: str) -> None:
    producer = Producer(cluster.for_confluent_kafka)
    failed = []
    producer.produce(topic, b"hello", on_delivery=lambda error, _message: failed.append(error) if error else None)
    assert producer.flush(LIMIT_S) == 0
    assert failed == []


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_a_frozen_clock_stops_no_broker(lowtide: LowtideCluster, lowtide_topic: str) -> None:
    """A broker in the test's process would refuse records with INVALID_TIMESTAMP, and its timers would stop."""
    with freeze_time("2001-01-01"):
        produce(lowtide, lowtide_topic)


FORKING = """
import os, signal
from lowtide import LowtideCluster

with LowtideCluster(brokers=2) as cluster:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        cluster.stop_broker(2)
        cluster.start_broker(2)
        cluster.restart()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def test_a_broker_starts_again_after_the_test_has_forked() -> None:
    """The child of a fork holds what was open: a broker's lock and sockets, if they were there."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("in_process", [False, True])
def test_a_reset_forgets_everything(in_process: bool) -> None:
    with LowtideCluster(secure=True, in_process=in_process) as cluster:
        settings = cluster.for_confluent_kafka
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("t", 1)])["t"].result(LIMIT_S)
        cluster.reset()
        assert topics(cluster) == set()
        assert cluster.for_confluent_kafka == settings, "the address, the certificates and the passwords stay"


def test_a_folder_that_was_given_is_never_emptied(tmp_path: Path) -> None:
    with LowtideCluster(data_directory=tmp_path) as cluster:
        produce(cluster, "t")
        with pytest.raises(AssertionError, match="reset removes only temporary directories"):
            cluster.reset()
        assert topics(cluster) == {"t"}


def test_what_keeps_a_broker_from_starting_is_raised_here() -> None:
    with pytest.raises(ConfigError, match="nope is not a broker configuration key"):
        LowtideCluster(config={"nope": 1}).start()


def test_the_log_is_kept_until_after_the_stop() -> None:
    cluster = LowtideCluster(config={"http.listeners": ""})
    cluster.start()
    before = cluster.log_size
    assert '"this broker is the controller"' in cluster.log()
    cluster.restart()
    assert '"this broker is the controller"' in cluster.log(before)
    cluster.stop()
    assert '"this broker is the controller"' in cluster.log()


def test_a_process_that_was_killed_is_named_and_can_be_stopped() -> None:
    cluster = LowtideCluster()
    cluster.start()
    host = cluster._host
    assert isinstance(host, ProcessOfBrokers)
    os.kill(host.pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="ended with -9"):
        cluster.restart()
    cluster.stop()


def test_the_brokers_end_with_the_test_that_started_them(tmp_path: Path) -> None:
    """Also where it is killed: nothing of them is left that would hold a port."""
    program = """
        import sys, time
        from lowtide import LowtideCluster
        cluster = LowtideCluster(data_directory=sys.argv[1])
        cluster.start()
        print(cluster.port, cluster._host.pid, flush=True)
        time.sleep(600)
    """
    test = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert test.stdout is not None
    port, pid = map(int, test.stdout.readline().split())
    brokers = os.pidfd_open(pid)
    test.kill()
    test.wait()
    test.stdout.close()
    try:
        import select

        assert select.select([brokers], [], [], LIMIT_S)[0], (
            "a process file descriptor is readable when its process has ended"
        )
    finally:
        os.close(brokers)
    assert is_free(port)


FAILING = """
def test_that_fails(lowtide, lowtide_topic):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": lowtide.bootstrap})
    producer.produce(lowtide_topic, b"hello")
    assert producer.flush(60) == 0
    assert False


def test_that_passes(lowtide):
    lowtide.restart()


def test_that_fails_without_a_word_of_the_broker(lowtide):
    assert False
"""


def test_the_report_of_a_failure_has_what_the_brokers_logged(tmp_path: Path) -> None:
    """Since the test began, and of no other test."""
    (tmp_path / "test_project.py").write_text(FAILING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    first, second = done.stdout.partition("test_that_fails_without_a_word_of_the_broker __")[::2]
    assert "- Lowtide at 127.0.0.1:" in first
    assert '"ready"' in first or '"this broker is the controller"' in first
    assert "- Lowtide at 127.0.0.1:" not in second

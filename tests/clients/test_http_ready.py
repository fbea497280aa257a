"""`/health/ready`: the reasons why a broker isn't ready, and the replicas that a rolling restart waits for."""

from __future__ import annotations

import json
import urllib.request
from urllib.error import HTTPError

from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.broker.http.readiness import BrokerStage
from lowtide.testing.cluster import LowtideCluster
from tests.http_visitor import visit
from tests.inside import broker_of

from .driver import until
from .test_http_hostile import visited


def ready(url: str, query: str = "") -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"{url}/health/ready{query}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


async def test_a_broker_that_starts_or_stops_is_not_ready(tmp_path):
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        found = await visit(url, "/health/ready")
        assert (found.status, json.loads(found.body)) == (200, {"ready": True, "broker": 0, "reasons": []})
        for stage in (BrokerStage.STARTS, BrokerStage.STOPS):
            broker.serving._readiness.enter(stage)
            found = await visit(url, "/health/ready")
            assert (found.status, json.loads(found.body)["reasons"]) == (503, [stage.value])
            assert (await visit(url, "/health/live")).status == 200


async def test_a_directory_that_fails_is_named(tmp_path):
    async with visited(tmp_path / "a", log_dirs=f"{tmp_path}/a,{tmp_path}/b") as broker:
        broker.log_manager.directories.fail(f"{tmp_path}/b", OSError(5, "Input/output error"))
        found = await visit(broker.http_addresses[0], "/health/ready")
        assert found.status == 503
        (reason,) = json.loads(found.body)["reasons"]
        assert f"the log directory {tmp_path}/b is offline" in reason


def test_replicas_in_sync_are_waited_for_where_that_is_wanted():
    settings = {
        "http.listeners": "http://127.0.0.1:0",
        "replica.lag.time.max.ms": "1000",
        "broker.session.timeout.ms": "2000",
    }
    with LowtideCluster(3, config=settings | {"broker.heartbeat.interval.ms": "500"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("clicks", 2, 3)])["clicks"].result(60)
        (url,) = cluster.http_addresses(1)
        patiently(lambda: ready(url, "?in_sync") == (200, {"ready": True, "broker": 1, "reasons": []}))
        cluster.stop_broker(3)
        seen = []

        def is_missed() -> bool:
            status, found = ready(url, "?in_sync")
            seen[:] = found["reasons"]
            return status == 503

        patiently(is_missed)
        (reason,) = seen
        assert "partitions are not in sync: clicks-" in reason
        patiently(lambda: ready(url)[0] == 200)
        cluster.start_broker(3)
        patiently(lambda: ready(url, "?in_sync")[0] == 200)


def patiently(condition):
    """A visitor that asks as often as `until` has some of its connections refused."""
    until(condition, but=(OSError,))


def test_a_broker_without_its_registration_is_not_ready():
    """As one whose metadata store is out of reach."""
    with LowtideCluster(1, config={"http.listeners": "http://127.0.0.1:0"}, in_process=True) as cluster:
        broker = broker_of(cluster)
        (url,) = broker.http_addresses
        assert ready(url)[0] == 200
        readiness = broker.serving._readiness

        class Fenced:
            refused, is_fenced = "", True

        session, readiness._session = readiness._session, Fenced()
        status, found = ready(url)
        readiness._session = session
        assert status == 503
        assert found["reasons"] == [
            "the broker is not registered: the metadata store is out of reach, or has given it up"
        ]

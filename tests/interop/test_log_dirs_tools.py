"""Kafka's tools move a replica with records and a log start to another log directory (KIP-113)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient, DeletedRecords, OffsetSpec, TopicPartition
from tests.clients.driver import OutgoingRecord, until
from tests.clients.driver_confluent import Confluent

from .tools import Tools

pytestmark = pytest.mark.interop

KEY = TopicPartition("placed", 0)
COUNT, DELETED = 200, 90


def test_a_reassignment_names_a_log_directory(jars: Path, tmp_path: Path) -> None:
    disks = [str(tmp_path / "one"), str(tmp_path / "two")]
    with (
        LowtideCluster(config={"log.dirs": ",".join(disks)}) as cluster,
        BlockingAdminClient(cluster.bootstrap) as admin,
    ):
        tools, driver = Tools(jars, cluster.bootstrap, tmp_path), Confluent(cluster.bootstrap)
        tools.run("kafka-topics", "--create", "--topic", KEY.topic, "--partitions", "1", "--replication-factor", "1")
        for number in range(COUNT):
            driver.produce(KEY.topic, [OutgoingRecord(b"k", b"%d" % number)])
        assert isinstance(admin.delete_records({KEY: DELETED})[KEY], DeletedRecords)
        [(broker, found)] = admin.describe_log_dirs().items()

        def places() -> dict[str, bool]:
            (rows,) = admin.describe_log_dirs().values()
            assert isinstance(rows, dict)
            return {path: each.replicas[KEY].is_future for path, each in rows.items() if KEY in each.replicas}

        assert isinstance(found, dict)
        [here] = places()
        target = next(path for path in disks if path != here)
        moved: dict[str, Any] = {"topic": KEY.topic, "partition": 0, "replicas": [broker], "log_dirs": [target]}
        file = tmp_path / "reassignment.json"
        file.write_text(json.dumps({"version": 1, "partitions": [moved]}))
        throttle = ("--replica-alter-log-dirs-throttle", "50000000")
        said = tools.run("kafka-reassign-partitions", "--reassignment-json-file", str(file), "--execute", *throttle)
        assert (
            f"Successfully started moving log directory to {target} for replica {KEY.topic}-0 with broker {broker}"
            in said.out
        )
        until(lambda: places() == {target: False})
        said = tools.run("kafka-reassign-partitions", "--reassignment-json-file", str(file), "--verify")
        assert f"replica {KEY.topic}-0-{broker} completed successfully" in said.out, said
        assert target in tools.run("kafka-log-dirs", "--describe", "--topic-list", KEY.topic).out
        ends = {spec: admin.list_offsets({KEY: spec})[KEY].offset for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)}
        assert ends == {OffsetSpec.EARLIEST: DELETED, OffsetSpec.LATEST: COUNT}
        assert not list(Path(here).glob(f"{KEY.topic}-0*/*.log"))

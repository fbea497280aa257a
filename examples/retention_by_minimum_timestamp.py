"""Delete everything before a moment (KIP-47): `log.retention.min.timestamp`.

    python examples/retention_by_minimum_timestamp.py

It starts a broker that checks every 0.2 seconds (the default is five minutes). Segments are deleted whose records are
all older.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from confluent_kafka import Producer

from lowtide import BlockingAdminClient, LowtideCluster, TopicPartition
from lowtide.admin import ConfigChange, ConfigResource, ConfigResourceType, NewTopic, OffsetSpec

BROKER = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "100"}
PARTITION = TopicPartition("tides", 0)
NOVEMBER = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


def log_start(admin: BlockingAdminClient) -> int:
    listed = admin.list_offsets({PARTITION: OffsetSpec.EARLIEST})[PARTITION]
    assert not isinstance(listed, Exception), listed
    return listed.offset


def fill(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "batch.num.messages": 100})
    for moment in (NOVEMBER - 86_400_000, NOVEMBER + 1):  # the day before, and just after
        for _ in range(2000):
            producer.produce("tides", value=b"x" * 1024, timestamp=moment)
        assert producer.flush(30) == 0


def main() -> None:
    with LowtideCluster(config=BROKER) as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        configs = {"segment.bytes": "1048576", "retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
        admin.create_topics([NewTopic(name="tides", partitions=1, configs=configs)])
        fill(cluster.bootstrap)
        assert log_start(admin) == 0

        topic = ConfigResource(ConfigResourceType.TOPIC, "tides")
        admin.alter_configs({topic: [ConfigChange("log.retention.min.timestamp", str(NOVEMBER))]})
        deadline = time.monotonic() + 30
        while (start := log_start(admin)) == 0:
            assert time.monotonic() < deadline, "nothing was deleted"
            time.sleep(0.1)
        assert start <= 2000, start
        print("whole segments of October are gone; every record of November is there")


if __name__ == "__main__":
    main()

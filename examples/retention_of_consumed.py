"""Delete what every consumer group has consumed (KIP-68): `retention.commitoffset.ms`.

    python examples/retention_of_consumed.py

It starts a broker that checks every 0.2 seconds (the default is five minutes). A segment is deleted when every group
that has committed an offset for the partition is past its last record.
"""

from __future__ import annotations

import time

from confluent_kafka import Producer

from lowtide import BlockingAdminClient, LowtideCluster, TopicPartition
from lowtide.admin import NewTopic, OffsetSpec

BROKER = {
    "log.retention.commitoffset.enable": "true",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
}
RECORDS = 3000  # of 1 KiB: three segments
PARTITION = TopicPartition("tides", 0)


def log_start(admin: BlockingAdminClient) -> int:
    listed = admin.list_offsets({PARTITION: OffsetSpec.EARLIEST})[PARTITION]
    assert not isinstance(listed, Exception), listed
    return listed.offset


def wait_until_it_rises(admin: BlockingAdminClient, above: int) -> int:
    deadline = time.monotonic() + 120
    while (start := log_start(admin)) <= above:
        assert time.monotonic() < deadline, f"the log start is still {start}"
        time.sleep(0.1)
    return start


def fill(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "batch.num.messages": 100})
    for _ in range(RECORDS):
        producer.produce("tides", value=b"x" * 1024)
    assert producer.flush(30) == 0


def main() -> None:
    with LowtideCluster(config=BROKER) as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        configs = {"segment.bytes": "1048576", "retention.commitoffset.ms": "0", "retention.ms": "-1"}
        admin.create_topics([NewTopic(name="tides", partitions=1, configs=configs)])
        fill(cluster.bootstrap)

        # Instead of consumers: two groups commit their positions. The slower one decides, so it comes first: a group
        # that has committed nothing keeps nothing.
        admin.alter_group_offsets("archive", {PARTITION: RECORDS // 2})
        admin.alter_group_offsets("reports", {PARTITION: RECORDS})
        first = wait_until_it_rises(admin, 0)
        assert first <= RECORDS // 2
        print("the archive is in the middle: what it has not consumed is still there")

        admin.alter_group_offsets("archive", {PARTITION: RECORDS})
        wait_until_it_rises(admin, RECORDS // 2)
        print("both groups have consumed everything: the old segments are gone")


if __name__ == "__main__":
    main()

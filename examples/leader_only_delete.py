"""Delete on the leaders only (LeaderOnly, KIP-1343), with Lowtide's client, in a cluster of three brokers.

    python examples/leader_only_delete.py [HOST:PORT]

The call returns when the leader has the delete on disk; followers receive it with their next fetches. Until then, a
leader that is elected among them may show the deleted records again. A delete without `leader_only` waits for every
live replica.
"""

from __future__ import annotations

import uuid

from confluent_kafka import Producer
from some_broker import some_broker

from lowtide import BlockingAdminClient, DeletedRecords, TopicPartition
from lowtide.admin import NewTopic


def run(address: str) -> None:
    topic = f"tides-{uuid.uuid4().hex[:8]}"
    with BlockingAdminClient(address) as admin:
        replicas = min(3, len(admin.describe_cluster().brokers))
        admin.create_topics([NewTopic(name=topic, partitions=2, replication_factor=replicas)])
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        for number in range(20):
            producer.produce(topic, value=f"tide {number}", partition=number % 2)
        assert producer.flush(30) == 0

        targets = {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 6}
        for leader_only in (True, False):
            for partition, result in sorted(admin.delete_records(targets, leader_only=leader_only).items()):
                assert isinstance(result, DeletedRecords), result
                what = "the leader starts" if leader_only else "every live replica starts"
                start = result.leader_log_start_offset if leader_only else result.low_watermark
                print(f"partition {partition.partition}: {what} at {start}")


def main() -> None:
    with some_broker(brokers=3) as address:
        run(address)


if __name__ == "__main__":
    main()

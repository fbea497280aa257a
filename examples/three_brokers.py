"""Run three brokers with `lowtide dev`, and write to a topic with three replicas, acknowledged by all of them.

python examples/three_brokers.py
"""

from __future__ import annotations

import subprocess
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


def use(addresses: str) -> None:
    admin = AdminClient({"bootstrap.servers": addresses})
    topic = NewTopic("copied", num_partitions=3, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["copied"].result(30)
    producer = Producer({"bootstrap.servers": addresses, "enable.idempotence": True})
    for number in range(10):
        producer.produce("copied", value=f"hello {number}")
    assert producer.flush(30) == 0
    print("10 records are acknowledged by all replicas in sync")
    for number, partition in sorted(admin.list_topics("copied", 10).topics["copied"].partitions.items()):
        print(f"partition {number}: leader {partition.leader}, in sync {sorted(partition.isrs)}")


def main() -> None:
    # In a shell: lowtide dev --brokers 3. Port 0 lets the system choose; the first line has the addresses.
    command = [sys.executable, "-m", "lowtide.cli.main", "dev", "--brokers", "3", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            use(cluster.stdout.readline().strip().removeprefix("bootstrap.servers="))
        finally:
            cluster.terminate()


if __name__ == "__main__":
    main()

"""Topics, configurations, groups and disk usage, with Lowtide's client for asyncio. It works against Apache Kafka too.

python examples/admin_client.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import uuid

from some_broker import some_broker

from lowtide import AdminClient, TopicPartition
from lowtide.admin import ConfigChange, ConfigResource, ConfigResourceType, NewTopic


async def look_at(address: str) -> None:
    name = f"measurements-{uuid.uuid4().hex[:8]}"
    async with AdminClient(address) as admin:
        cluster = await admin.describe_cluster()
        print(f"{len(cluster.brokers)} brokers")

        created = await admin.create_topics([NewTopic(name=name, partitions=3, configs={"retention.ms": "3600000"})])
        assert not isinstance(created[name], Exception), created[name]
        await admin.create_partitions({name: 4})
        topic = (await admin.describe_topics([name]))[name]
        assert not isinstance(topic, Exception), topic
        print(f"{len(topic.partitions)} partitions")

        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        await admin.alter_configs({resource: [ConfigChange("retention.bytes", "1000000")]})
        entries = (await admin.describe_configs([resource]))[resource]
        assert not isinstance(entries, Exception), entries
        print(
            {
                key: entry.value
                for key, entry in sorted(entries.items())
                if key.startswith("retention.") and not entry.is_default
            }
        )

        # A group's position can be set while the group has no members.
        await admin.alter_group_offsets(f"{name}-readers", {TopicPartition(name, 0): 0})
        offsets = (await admin.list_group_offsets([f"{name}-readers"]))[f"{name}-readers"]
        assert not isinstance(offsets, Exception), offsets
        print(f"{len(offsets)} partition of the group has an offset")

        for directories in (await admin.describe_log_dirs()).values():
            assert not isinstance(directories, Exception), directories
            print(f"{len(directories)} log directory")
        print(
            {topic: error for topic, error in (await admin.delete_topics([name])).items() if error is not None}
            or "topic deleted"
        )


def main() -> None:
    with some_broker() as address:
        asyncio.run(look_at(address))


if __name__ == "__main__":
    main()

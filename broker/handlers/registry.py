"""Which APIs this broker serves: the one list that ApiVersions, the version check and the documentation follow."""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.broker.configs import ConfigAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec, VersionRange
from lowtide.broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from lowtide.broker.topics import TopicAdministrator
from lowtide.protocol.api_keys import ApiKey


def handlers(
    broker: BrokerContext, administrator: TopicAdministrator, configs: ConfigAdministrator, advertised: Mapping[ApiKey, VersionRange]
) -> list[HandlerSpec]:
    """The handlers over a broker's state; `advertised` is the dispatcher's own table."""
    return [
        alter_configs.handler(configs),
        api_versions.handler(advertised),
        create_partitions.handler(administrator),
        create_topics.handler(administrator),
        delete_records.handler(broker),
        delete_topics.handler(administrator),
        describe_cluster.handler(broker),
        describe_configs.handler(configs),
        describe_log_dirs.handler(broker),
        describe_producers.handler(broker),
        describe_topic_partitions.handler(broker),
        fetch.handler(broker),
        incremental_alter_configs.handler(configs),
        init_producer_id.handler(broker),
        list_config_resources.handler(configs),
        list_offsets.handler(broker),
        metadata.handler(broker, administrator),
        offset_for_leader_epoch.handler(broker),
        produce.handler(broker),
    ]

"""Takes over topics from log directories that are unknown to the metadata, or refuses because metadata were lost.

A broker with new metadata registers the complete topics that it finds, under their ids, and hands out producer ids
above all that it finds. Their configuration comes from Kafka's metadata log if a directory has one, or else is the
default. A broker that has metadata never adopts: there, a log without a topic is left over from a deleted topic. The
metadata record an adoption in progress, so an interrupted one continues at the next start.

If Lowtide used the directories before (they contain `lowtide-registration`), new metadata mean that the old ones were
lost, and with them all topic configurations, leader epochs and deleted topics. The start is refused unless the operator
creates an empty file `lowtide-adopt-topics` in the first log directory, to take over the topics with the default
configuration. The start that finds the file removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from lowtide.broker.config.topic_config import TopicConfigFault, validate_topic_config
from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.errors import ConflictError
from lowtide.metadata.session import MetadataSession
from lowtide.metadata.store import Delete, MetadataStore, Put
from lowtide.protocol.types import TopicId
from lowtide.replication.new_topics import plan_adoption, plan_producer_ids_from
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.directory.kafka_metadata import UnreadableMetadataError, read_topic_configs
from lowtide.storage.errors import StorageError
from lowtide.storage.folder_names import parse_folder_name
from lowtide.storage.log.log import Log
from lowtide.storage.log_directory import REGISTRATION_COUNTER

ADOPTION_WISH = "lowtide-adopt-topics"
"""The operator's consent to take over topics although Lowtide's metadata are gone."""


class Adoption(Enum):
    """Whether topics are taken over; the values are stored in the metadata during an adoption."""

    NONE = b""
    FROM_KAFKA = b"kafka"
    """Lowtide never used the directories: the configurations come from Kafka's metadata log."""
    OF_OUR_OWN = b"lowtide"
    """Lowtide's metadata were lost. A metadata log of Kafka would be older than they were, so it is ignored."""


async def adoption_due(
    store: MetadataStore, filesystem: FileSystem, directories: Sequence[str], metadata_file: str, prefix: bytes
) -> Adoption:
    """Returns whether to take over topics from the directories, and records it in the metadata.

    Must be called before the session is opened. Consumes the operator's consent. `metadata_file` names the metadata in
    errors; their keys begin with `prefix`. Errors: StorageError if the metadata were lost; those of the store.
    """
    wish = f"{directories[0]}/{ADOPTION_WISH}"
    noted = prefix + keys.ADOPTION
    # A suspended store is not new: a recovery or a restore was interrupted, which the session reports.
    is_new = await store.get(prefix + keys.CLUSTER_ID) is None and await store.get(prefix + keys.SUSPENSION) is None
    if is_new:
        adoption = _wanted(filesystem, directories, metadata_file, wish)
        if adoption is not Adoption.NONE:
            await store.transact((), (Put(noted, adoption.value),))
    if filesystem.exists(wish):
        # The file is valid for one start: if it stayed, it would hide a later loss.
        filesystem.unlink(wish)
        filesystem.sync_directory(directories[0])
    under_way = await store.get(noted)
    if under_way is None:
        return Adoption.NONE
    try:
        return Adoption(under_way.value)
    except ValueError as error:
        reason = f"{keys.ADOPTION.decode()} in the metadata is {under_way.value!r}: restore its previous value"
        raise StorageError(metadata_file, reason) from error


def _wanted(filesystem: FileSystem, directories: Sequence[str], metadata_file: str, wish: str) -> Adoption:
    """Decides what new metadata mean.

    Errors: StorageError if Lowtide used the directories and the operator did not consent.
    """
    names = {directory: _names(filesystem, directory) for directory in directories}
    held = [
        directory
        for directory, content in names.items()
        if any(parse_folder_name(name) is not None for name in content)
    ]
    used = [directory for directory, content in names.items() if REGISTRATION_COUNTER in content]
    if held and used and not filesystem.exists(wish):
        raise StorageError(
            metadata_file,
            f"the metadata are missing or empty, but the log directory {used[0]} was in use and {held[0]} has "
            "partitions; restore them from the log directories with `lowtide metadata recover`, or create an empty "
            f"file {wish} to start with these topics and the default configuration for all of them",
        )
    if not held:
        return Adoption.NONE
    return Adoption.OF_OUR_OWN if used else Adoption.FROM_KAFKA


def kafka_configs(filesystem: FileSystem, directories: Sequence[str], log: Any) -> dict[TopicId, dict[str, str]]:
    """Returns the configurations of Kafka's topics, without values that this broker cannot store.

    Logs the reason and returns nothing if they are unavailable.
    """
    try:
        found = read_topic_configs(filesystem, directories)
    except (UnreadableMetadataError, OSError) as error:
        log.warning("Kafka's metadata log cannot be read, topics get the default configuration", reason=str(error))
        return {}
    if found is None:
        log.warning("Kafka's metadata log is missing, topics get the default configuration")
        return {}
    for configs in found.values():
        for name, value in list(configs.items()):
            checked = validate_topic_config(name, value)
            if isinstance(checked, TopicConfigFault):
                log.warning("topic setting is not taken over", key=name, value=value, reason=checked.message)
                del configs[name]
            else:
                configs[name] = checked
    return found


async def adopt_topics(
    session: MetadataSession, logs: Iterable[Log], configs: Mapping[TopicId, Mapping[str, str]], log: Any
) -> None:
    """Registers every topic whose partitions, from 0 on, are all among the logs.

    Errors: those of `MetadataSession.commit`.
    """
    found: dict[tuple[str, TopicId], dict[int, int]] = {}
    next_producer_id = 0
    for each in logs:
        next_producer_id = max(next_producer_id, *(producer_id + 1 for producer_id in each.producer_state.producers), 0)
        name, partition = each.topic_partition
        found.setdefault((name, each.topic_id), {})[partition] = each.leader_epochs.latest + 1
    for (name, topic_id), epochs in sorted(found.items()):
        if name in session.image.topics:
            continue  # Registered before an interruption.
        if sorted(epochs) != list(range(len(epochs))):
            log.warning("topic on disk lacks partitions and is ignored", topic=name, partitions=sorted(epochs))
            continue
        leader_epochs = [epochs[number] for number in range(len(epochs))]
        plan = plan_adoption(session.image, name, topic_id, leader_epochs, session.broker_id, configs.get(topic_id, {}))
        await session.wait_for(await session.commit(plan))
        configuration = dict(configs.get(topic_id, {}))
        log.info("topic on disk is taken over", topic=name, partitions=len(epochs), configuration=configuration)
    if next_producer_id > 0:
        with suppress(ConflictError):  # Done before an interruption.
            await session.wait_for(await session.commit(plan_producer_ids_from(next_producer_id)))


async def finish_adoption(session: MetadataSession) -> None:
    """Records that the adoption is complete. Errors: those of `MetadataSession.commit`."""
    await session.commit(ChangePlan((Step((Delete(keys.ADOPTION),)),), needs_controller=False))


def _names(filesystem: FileSystem, directory: str) -> list[str]:
    """Returns the names in a directory; nothing if it cannot be listed, which is reported when it is opened."""
    try:
        return filesystem.listdir(directory)
    except OSError:
        return []

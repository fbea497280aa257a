"""Log directories that are fuller than the metadata say: taken over from Apache Kafka, or refused because metadata were lost.

A broker whose metadata are new registers the topics whose logs it finds, whole, under their ids, and hands out producer ids that none of
them has seen. How the topics are configured is read from Kafka's own metadata log where one of the directories has it; else they begin with
the defaults. A broker that has metadata never adopts: there, a log without a topic is what is left of a deleted one. That an adoption is
under way is in the metadata, so an interrupted one continues at the next start.

If the directories were in use by Lowtide before (their `lowtide-registration` says so), new metadata are metadata that were lost, and with
them every topic's configuration, its leader epochs, and which topics were deleted. The start is refused, unless the operator says, by an
empty file `lowtide-adopt-topics` in the first log directory, that the topics are to be taken over with the default configuration. The start
that finds the file removes it.
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
"""The operator's word that topics may be taken over though the metadata that Lowtide had are gone."""


class Adoption(Enum):
    """Whether topics are taken over; members are what stands in the metadata while it is under way."""

    NONE = b""
    FROM_KAFKA = b"kafka"
    """Lowtide was never here: how topics are configured is what Kafka's metadata log says."""
    OF_OUR_OWN = b"lowtide"
    """The metadata of Lowtide were lost. A metadata log of Kafka's, if there is one, is older than they were, and isn't asked."""


async def adoption_due(
    store: MetadataStore, filesystem: FileSystem, directories: Sequence[str], metadata_file: str, prefix: bytes
) -> Adoption:
    """Whether topics are to be taken over from the directories; noted in the metadata if so.

    To be called before the session is opened. The operator's word is used up by it. `metadata_file` is what the
    metadata are called in a refusal; their keys begin with `prefix`. Errors: StorageError when the metadata were lost;
    those of the store.
    """
    wish = f"{directories[0]}/{ADOPTION_WISH}"
    noted = prefix + keys.ADOPTION
    # A store that is suspended isn't new, a recovery or a restore was cut off there: the session refuses it, and says
    # so.
    is_new = await store.get(prefix + keys.CLUSTER_ID) is None and await store.get(prefix + keys.SUSPENSION) is None
    if is_new:
        adoption = _wanted(filesystem, directories, metadata_file, wish)
        if adoption is not Adoption.NONE:
            await store.transact((), (Put(noted, adoption.value),))
    if filesystem.exists(wish):
        # It counts for one start: lying there, it would answer for a later loss too.
        filesystem.unlink(wish)
        filesystem.sync_directory(directories[0])
    under_way = await store.get(noted)
    if under_way is None:
        return Adoption.NONE
    try:
        return Adoption(under_way.value)
    except ValueError as error:
        reason = f"{keys.ADOPTION.decode()} in the metadata is {under_way.value!r}: put back what it was"
        raise StorageError(metadata_file, reason) from error


def _wanted(filesystem: FileSystem, directories: Sequence[str], metadata_file: str, wish: str) -> Adoption:
    """What it means that the metadata are new.

    Errors: StorageError when they were in use by Lowtide, and that was not confirmed.
    """
    names = {directory: _names(filesystem, directory) for directory in directories}
    held = [
        directory
        for directory, content in names.items()
        if any(parse_folder_name(name) is not None for name in content)
    ]
    used = [directory for directory, content in names.items() if REGISTRATION_COUNTER in content]
    if held and used and not filesystem.exists(wish):
        reason = (
            f"the metadata are missing or empty, though the log directory {used[0]} was in use and {held[0]} holds partitions; "
            f"bring them forward from the log directories with `lowtide metadata recover`, or make an empty file {wish} to start with "
            "these topics and the default configuration for all of them"
        )
        raise StorageError(metadata_file, reason)
    if not held:
        return Adoption.NONE
    return Adoption.OF_OUR_OWN if used else Adoption.FROM_KAFKA


def kafka_configs(filesystem: FileSystem, directories: Sequence[str], log: Any) -> dict[TopicId, dict[str, str]]:
    """How Kafka's topics were configured, without what this broker can't keep; nothing where that can't be found out.

    The log says what.
    """
    try:
        found = read_topic_configs(filesystem, directories)
    except (UnreadableMetadataError, OSError) as error:
        log.warning(
            "the metadata log of Kafka can't be read, topics begin with the default configuration", reason=str(error)
        )
        return {}
    if found is None:
        log.warning("there is no metadata log of Kafka, topics begin with the default configuration")
        return {}
    for configs in found.values():
        for name, value in list(configs.items()):
            checked = validate_topic_config(name, value)
            if isinstance(checked, TopicConfigFault):
                log.warning("a topic's setting isn't taken over", key=name, value=value, reason=checked.message)
                del configs[name]
            else:
                configs[name] = checked
    return found


async def adopt_topics(
    session: MetadataSession, logs: Iterable[Log], configs: Mapping[TopicId, Mapping[str, str]], log: Any
) -> None:
    """Register every topic of which all partitions, from 0 on, are among the logs.

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
            continue  # An adoption that was cut off came as far as this.
        if sorted(epochs) != list(range(len(epochs))):
            log.warning(
                "topic found on disk has gaps in its partitions, it is left alone",
                topic=name,
                partitions=sorted(epochs),
            )
            continue
        leader_epochs = [epochs[number] for number in range(len(epochs))]
        plan = plan_adoption(session.image, name, topic_id, leader_epochs, session.broker_id, configs.get(topic_id, {}))
        await session.wait_for(await session.commit(plan))
        log.info(
            "topic found on disk is taken over",
            topic=name,
            partitions=len(epochs),
            configuration=dict(configs.get(topic_id, {})),
        )
    if next_producer_id > 0:
        with suppress(ConflictError):  # Likewise.
            await session.wait_for(await session.commit(plan_producer_ids_from(next_producer_id)))


async def finish_adoption(session: MetadataSession) -> None:
    """Note that all is taken over. Errors: those of `MetadataSession.commit`."""
    await session.commit(ChangePlan((Step((Delete(keys.ADOPTION),)),), needs_controller=False))


def _names(filesystem: FileSystem, directory: str) -> list[str]:
    """What is in a directory; nothing if it can't be listed, which is found out, and reported, when it is opened."""
    try:
        return filesystem.listdir(directory)
    except OSError:
        return []

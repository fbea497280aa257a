"""Chooses the schema of a new table by a sample of the topic, if the user leaves the choice to the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lowtide.admin.schemas.framing import HEAD_BYTES
from lowtide.admin.schemas.registry import Registry, RegistryError
from lowtide.pipeline.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, BlockingCluster
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.table.evolving import known_kind
from lowtide.pipeline.table.options import AUTO, TableOptions
from lowtide.pipeline.table.schemas import check_settings
from lowtide.pipeline.tasks import FetchSettings, PlannedRange
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

SAMPLE_RECORDS: Final = 200
"""How many records decide, spread over the partitions."""

SAMPLE_BYTES: Final = 1 << 20

SHARE_MIN: Final = 0.9
"""The share of the sample that must fit a schema. The others are dead letters then."""


def with_schema(options: TableOptions, catalog: Catalog, cluster: BlockingCluster) -> TableOptions:
    """Returns the options with a schema: that of the table if there is one, or what the sample looks like.

    Errors: OptionError, if the topic is empty or the table's schema needs a registry; MissingTopicsError, ClusterError.
    """
    cluster.find_topics([options.topic], cluster.deadline())
    if options.schema.kind != AUTO:
        return options
    kind = known_kind(catalog, options.table)
    if kind is None:
        values = sampled_values(options, cluster)
        if not values:
            raise OptionError(
                f"topic {options.topic} has no records that show which schema its values have: give --schema"
            )
        kind = chosen_kind(values, options.schema.registry)
    schema = replace(options.schema, kind=kind)
    try:
        check_settings(schema)
    except ValueError as error:
        raise OptionError(
            f"table {options.table} has values of the schema {kind}, which can't be read without a schema registry: "
            "give --registry"
        ) from error
    return replace(options, schema=schema)


def chosen_kind(values: Sequence[bytes], registry: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the schema that nearly all values fit: by the registry's types if they name schemas that it knows.

    Without a registry, or for ids that it does not know, `json` if they are JSON objects, otherwise `raw`.
    Errors: OptionError, if the registry can't be asked.
    """
    client = Registry(registry) if registry else None
    try:
        kinds = Counter(_kind_of(value, client) for value in values)
    except RegistryError as error:
        raise OptionError(f"the schema registry can't be asked: {error}") from error
    kind, count = kinds.most_common(1)[0]
    return kind if count >= SHARE_MIN * len(values) else "raw"


def _kind_of(value: bytes, registry: Registry | None) -> str:
    if registry is not None and len(value) > HEAD_BYTES and not value[0]:
        found = registry.schema(int.from_bytes(value[1:HEAD_BYTES], "big"))
        return "raw" if found is None else _OF_REGISTRY.get(found.kind, "raw")
    return "json" if _is_object(value) else "raw"


_OF_REGISTRY: Final = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json"}


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(decode_json(value), dict)
    except ValueError:
        return False


def sampled_values(options: TableOptions, cluster: BlockingCluster) -> list[bytes]:
    """Returns values of the first records of each partition, without tombstones. Errors: ClusterError."""
    from lowtide.pipeline.arrow_batches import BatchMaker  # noqa: PLC0415 - an extra
    from lowtide.pipeline.fetching import RangeReader  # noqa: PLC0415

    topic = cluster.leaders.topics[options.topic]
    places = [TopicPartition(options.topic, number) for number in topic.leaders]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), read_committed=True)
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP), read_committed=True)
    share = max(SAMPLE_RECORDS // len(places), 1)
    found: list[bytes] = []
    fetch = FetchSettings(fetch_bytes=SAMPLE_BYTES, fail_on_data_loss=False)
    for place in places:
        planned = PlannedRange(ReadRange(place, starts[place].offset, ends[place].offset), topic.topic_id)
        maker, seen = BatchMaker(place, include_headers=False), 0
        with closing(RangeReader(cluster, fetch, planned).columns()) as read:
            for columns in read:  # The first offsets may have no records: they were erased, or compacted away.
                values = maker.batch(columns).column("value").to_pylist()[: share - seen]
                found += [value for value in values if value is not None]
                seen += len(values)
                if seen == share:
                    break
        if len(found) >= SAMPLE_RECORDS:
            break
    return found

"""`TrimListener`: deletes what streaming queries have consumed, also queries of Spark's own Kafka source.

    spark.streams.addListener(
        TrimListener(
            "127.0.0.1:9092", {"delays": ["flights"]}, checkpoints={"delays": "/data/delays"}
        )
    )

Spark reports the end of a batch after it has written the commit log. So the listener trims only to durably consumed
positions, except for a query with `asyncProgressTrackingEnabled`. A topic is trimmed to the lowest position of all
queries that are declared for it, once each of them has reported one. If a run was stopped between commit and trim, the
next start of the query trims to the position in its checkpoint.

Sources: Spark's ProgressReporter (events follow the commit log), MicroBatchExecution; OffsetSeqLog for the files.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQueryListener

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.options import Options
from lowtide.pipeline.ranges import TOPIC_IDS, Positions, QueryProgress, positions_from_json
from lowtide.pipeline.trim import Trimmer
from lowtide.pipeline.trim_options import trim_options
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, parse_topic_id

log = logging.getLogger(__name__)

OFFSET_LOG_HEAD: Final = 2
"""Lines before those of the sources: the version of the format, and the metadata of the batch."""


class TrimListener(StreamingQueryListener):  # type: ignore[misc]
    """Trims after each batch that a query has committed. Its methods raise nothing: they log failures."""

    def __init__(
        self,
        settings: str | Mapping[str, object] | ClientSettings,
        queries: Mapping[str, Iterable[str]],
        *,
        checkpoints: Mapping[str, str] | None = None,
        **options: object,
    ) -> None:
        """`queries` has the topics of each query, by its `queryName`. Name all queries that read one of these topics.

        `checkpoints` has the `checkpointLocation` of queries, in any file system that Spark reads. `options` are those
        of the data source that begin with `trim`, such as `trimLag="10 minutes"`, and `commitGroupId`.
        Errors: SettingsError, OptionError.
        """
        if isinstance(settings, str):
            settings = {"bootstrap.servers": settings}
        client = settings if isinstance(settings, ClientSettings) else ClientSettings.of(settings)
        given = Options({"trim": "commit", **{name: _text(value) for name, value in options.items()}})
        trim = trim_options(given, is_stream=True, starts_at_earliest=True)
        given.check_all_known()
        self._queries = {
            name: frozenset([topics] if isinstance(topics, str) else topics) for name, topics in queries.items()
        }
        self._checkpoints = dict(checkpoints or {})
        self._positions: dict[str, QueryProgress] = {}
        self._lock = threading.Lock()
        self._cluster = BlockingCluster(client)
        self._trimmer = Trimmer(trim, lambda: BlockingAdminClient(client), find_ids=self._find_ids)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 Spark's name
        """Trims to the position in the checkpoint, which the last run has consumed."""
        try:
            checkpoint = self._checkpoints.get(event.name)
            if event.name in self._queries and checkpoint is not None:
                consumed = committed_in(checkpoint)
                if consumed is not None:
                    self._on_consumed(event.name, consumed)
        except Exception as error:  # noqa: BLE001 a listener must not fail the query
            log.warning("query %s: what its last run left is not trimmed before its next batch: %s", event.name, error)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 Spark's name
        """Trims to the end of the batch."""
        try:
            name = event.progress.name
            if name in self._queries:
                # A null has become the text "None" on its way into Python.
                ends = [
                    source.endOffset for source in event.progress.sources if source.endOffset not in (None, "None", "")
                ]
                self._on_consumed(name, parse_ends(ends))
        except Exception as error:  # noqa: BLE001 as above
            log.warning("nothing is trimmed for a batch: %s", error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 Spark's name
        """Trims records that are now older than the lag, and retries failed trims."""
        try:
            self._offer()
        except Exception as error:  # noqa: BLE001 as above
            log.warning("nothing is trimmed for an idle query: %s", error)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 Spark's name
        """Does nothing: consumed records stay consumed."""

    def finish(self, timeout_ms: int = 30_000) -> bool:
        """Waits until all known positions are trimmed or have failed. Call it before the program ends.

        Returns False after `timeout_ms`.
        """
        return self._trimmer.finish(timeout_ms)

    # ------------------------------------------------------------------ positions
    def _on_consumed(self, name: str, consumed: QueryProgress) -> None:
        """Takes a query's positions, of its declared topics only."""
        topics = self._queries[name]
        positions = {partition: offset for partition, offset in consumed.positions.items() if partition.topic in topics}
        with self._lock:
            self._positions[name] = QueryProgress(positions, consumed.topic_ids)
        self._offer()

    def _offer(self) -> None:
        with self._lock:
            least, ids = least_positions(self._queries, self._positions)
        if least:
            self._trimmer.offer(QueryProgress(least, ids))

    def _find_ids(self, topics: Iterable[str]) -> dict[str, TopicId]:
        """Returns the present ids of topics that have one. Errors: ClusterError."""
        found = self._cluster.find_topics(topics, self._cluster.deadline())
        return {name: topic.topic_id for name, topic in found.items() if topic.topic_id != ZERO_TOPIC_ID}


def least_positions(
    queries: Mapping[str, frozenset[str]], positions: Mapping[str, QueryProgress]
) -> tuple[Positions, dict[str, TopicId]]:
    """Returns the lowest position of each partition among the queries of its topic, and the topic ids.

    A partition without a position from one of these queries is missing.
    """
    least: Positions = {}
    ids: dict[str, TopicId] = {}
    for topic in sorted(frozenset().union(*queries.values())):
        reported = [positions.get(name) for name, topics in queries.items() if topic in topics]
        if any(one is None for one in reported):
            continue
        readers = [one for one in reported if one is not None]
        known = {one.topic_ids[topic] for one in readers if topic in one.topic_ids}
        if len(known) > 1:
            continue  # One of them has read a deleted topic of this name.
        if known:
            ids[topic] = known.pop()
        for partition in set.intersection(
            *({one for one in reader.positions if one.topic == topic} for reader in readers)
        ):
            least[partition] = min(reader.positions[partition] for reader in readers)
    return least, ids


def parse_ends(texts: Iterable[str]) -> QueryProgress:
    """Returns the end offsets of all sources of a query whose offsets have Kafka's form."""
    positions: Positions = {}
    ids: dict[str, TopicId] = {}
    for text in texts:
        try:
            value = json.loads(text)
            found = positions_from_json(value)
            ids |= {topic: parse_topic_id(topic_id) for topic, topic_id in value.get(TOPIC_IDS, {}).items()}
        except (ValueError, AttributeError, TypeError):
            continue  # Other sources have offsets of another form.
        for partition, offset in found.items():
            positions[partition] = min(offset, positions.get(partition, offset))
    return QueryProgress(positions, ids)


def committed_in(checkpoint: str) -> QueryProgress | None:
    """Returns the end of the last committed batch in a checkpoint; None without one.

    Reads files with the Hadoop file systems of the running Spark. Errors: those of Hadoop; RuntimeError without Spark.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 threads of listeners have no active session
    if context is None:
        raise RuntimeError("no Spark runs in this process to read the checkpoint")
    jvm = context._jvm  # noqa: SLF001 the only way to Hadoop's file systems
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = root.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001 as above
    commits = jvm.org.apache.hadoop.fs.Path(root, "commits")
    if not files.exists(commits):
        return None
    batches = [int(one.getPath().getName()) for one in files.listStatus(commits) if one.getPath().getName().isdigit()]
    if not batches:
        return None
    opened = files.open(jvm.org.apache.hadoop.fs.Path(root, f"offsets/{max(batches)}"))
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8")
    finally:
        opened.close()
    return parse_ends(text.split("\n")[OFFSET_LOG_HEAD:])


def _text(value: object) -> str:
    """Returns the text of an option, as Spark has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

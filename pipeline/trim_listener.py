"""`TrimListener`: deletes what streaming queries have consumed, also queries of Spark's own Kafka source.

    spark.streams.addListener(
        TrimListener(
            "127.0.0.1:9092", {"delays": ["flights"]}, checkpoints={"delays": "/data/delays"}
        )
    )

Spark tells of a batch's end when the batch is in the commit log, so what a listener trims to was consumed durably,
except by a query with `asyncProgressTrackingEnabled`. A topic is trimmed to the least position of all queries that were
declared for it, and not before each of them has reported one. What a run left that was stopped between commit and trim
goes when the query starts again: its checkpoint tells what.

Sources: Spark's ProgressReporter (events come after the commit log), MicroBatchExecution; OffsetSeqLog for the files.
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
"""Lines before those of the sources: the format's version, and the batch's metadata."""


class TrimListener(StreamingQueryListener):  # type: ignore[misc]
    """Trims behind each batch that a query has committed. Its methods raise nothing: what goes wrong is in the log."""

    def __init__(
        self,
        settings: str | Mapping[str, object] | ClientSettings,
        queries: Mapping[str, Iterable[str]],
        *,
        checkpoints: Mapping[str, str] | None = None,
        **options: object,
    ) -> None:
        """`queries` has every query that reads one of the topics, by its `queryName`, with the topics it reads.

        `checkpoints` has their `checkpointLocation`, in any file system that Spark reads. `options` are those of the
        data source that begin with `trim`, and `commitGroupId`: `trimLag="10 minutes"`. Errors: SettingsError,
        OptionError.
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
        """What the query had consumed before it was stopped may go."""
        try:
            checkpoint = self._checkpoints.get(event.name)
            if event.name in self._queries and checkpoint is not None:
                consumed = committed_in(checkpoint)
                if consumed is not None:
                    self._on_consumed(event.name, consumed)
        except Exception as error:  # noqa: BLE001 a listener must not disturb the query
            log.warning("query %s: what its last run left is not trimmed before its next batch: %s", event.name, error)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 Spark's name
        """What the batch has consumed may go."""
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
        """Time for what is older than the lag by now, and for what failed."""
        try:
            self._offer()
        except Exception as error:  # noqa: BLE001 as above
            log.warning("nothing is trimmed for an idle query: %s", error)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 Spark's name
        """Nothing: what was consumed stays consumed."""

    def finish(self, timeout_ms: int = 30_000) -> bool:
        """Wait until everything that is known to be consumed was trimmed, or has failed: before the program ends.

        Whether it was.
        """
        return self._trimmer.finish(timeout_ms)

    # ------------------------------------------------------------------ who has consumed what
    def _on_consumed(self, name: str, consumed: QueryProgress) -> None:
        """A query's positions; only those of its declared topics count."""
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
        """The topics' ids now; without those that have none. Errors: ClusterError."""
        found = self._cluster.find_topics(topics, self._cluster.deadline())
        return {name: topic.topic_id for name, topic in found.items() if topic.topic_id != ZERO_TOPIC_ID}


def least_positions(
    queries: Mapping[str, frozenset[str]], positions: Mapping[str, QueryProgress]
) -> tuple[Positions, dict[str, TopicId]]:
    """What all queries have consumed that were declared for a topic.

    A partition that one of them has not reported is not in it.
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
            continue  # One of them has read a topic of this name that is gone.
        if known:
            ids[topic] = known.pop()
        for partition in set.intersection(
            *({one for one in reader.positions if one.topic == topic} for reader in readers)
        ):
            least[partition] = min(reader.positions[partition] for reader in readers)
    return least, ids


def parse_ends(texts: Iterable[str]) -> QueryProgress:
    """The end offsets of a query's sources: those that are of Kafka's form, all together."""
    positions: Positions = {}
    ids: dict[str, TopicId] = {}
    for text in texts:
        try:
            value = json.loads(text)
            found = positions_from_json(value)
            ids |= {topic: parse_topic_id(topic_id) for topic, topic_id in value.get(TOPIC_IDS, {}).items()}
        except (ValueError, AttributeError, TypeError):
            continue  # Files or rates have offsets of another form.
        for partition, offset in found.items():
            positions[partition] = min(offset, positions.get(partition, offset))
    return QueryProgress(positions, ids)


def committed_in(checkpoint: str) -> QueryProgress | None:
    """What a checkpoint says was consumed: the end of the last batch that was committed. None, where none was.

    Reads files by the Hadoop file systems of the running Spark. Errors: whatever those raise.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 listeners are called in threads that have no active session
    if context is None:
        raise RuntimeError("no Spark runs in this process, by which the checkpoint could be read")
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
    """An option as Spark would give it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

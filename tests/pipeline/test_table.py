"""A topic in a table: every record once, whatever comes between, and the topic trimmed behind it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.pipeline.cluster import EARLIEST_TIMESTAMP
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table import committing, writing
from lowtide.pipeline.table import job as job_module
from lowtide.pipeline.table.committing import TableChange, commit_change
from lowtide.pipeline.table.options import catalog_settings
from lowtide.pipeline.table.progress import ERASURE, OFFSETS, ProgressError, carried, properties_of
from lowtide.pipeline.table.round_table import RoundTable
from lowtide.pipeline.table.sampling import with_schema
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.pipeline.table.session import spark_runner
from lowtide.pipeline.table.trimming import TableTrimmer, TableTrimSettings
from lowtide.pipeline.tasks import DataLossError
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock

from .conftest import delete_to, make_topic
from .table_jobs import TABLE, LocalJobs

DEAD = f"{TABLE}_dead_letters"


@pytest.fixture
def jobs(lowtide: SimpleNamespace, topic: str, tmp_path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    yield made
    made.close()


@pytest.fixture
def send(lowtide: SimpleNamespace, topic: str):
    """`send(partition, value, ...)`: values that are not bytes become JSON."""
    producer = Producer({"bootstrap.servers": lowtide.bootstrap, "linger.ms": 1})

    def send(partition: int, *values: object, **fields: object) -> None:
        for value in values:
            text = value if isinstance(value, bytes) else json.dumps(value)
            producer.produce(topic, text, partition=partition, **fields)
        assert producer.flush(120) == 0

    return send


def places(counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in sorted(counts.items()) for offset in range(count)]


def test_each_round_adds_what_is_new(jobs, fill, topic):
    fill(topic, {0: 30, 1: 10}, key=b"k", headers=[("h", b"x")])
    job = jobs.job()
    report = job.round()
    assert (report.outcome, report.rows, report.files) == ("committed", 40, 1)
    assert properties_of(jobs.table().current_snapshot())[OFFSETS] == json.dumps(
        {topic: {"0": 30, "1": 10}}, separators=(",", ":")
    )
    assert job.round().outcome == "idle"
    fill(topic, {1: 5})
    assert jobs.job().round().rows == 5
    assert jobs.offsets() == places({0: 30, 1: 15})
    rows = jobs.table().scan().to_arrow().to_pylist()
    assert {row["value"] for row in rows if row["partition"] == 0} == {f"v{number}".encode() for number in range(30)}
    assert rows[-1]["key"] == b"k" or rows[0]["key"] == b"k"
    assert {"key": "h", "value": b"x"} in [header for row in rows for header in row["headers"] or ()]
    assert len(jobs.table().snapshots()) == 2


def test_a_round_is_limited_and_says_that_more_waits(jobs, fill, topic):
    fill(topic, {0: 30, 1: 10})
    job = jobs.job(rows_per_round_max=15)
    reports = [job.round()]
    while reports[-1].is_behind:
        reports.append(job.round())
    assert len(reports) >= 3
    assert max(one.rows for one in reports) <= 15
    assert jobs.offsets() == places({0: 30, 1: 10})


def test_offsets_without_records_make_progress_too(lowtide, jobs, topic):
    """An aborted transaction leaves its records and a marker; the table gets none of them."""
    producer = Producer({"bootstrap.servers": lowtide.bootstrap, "transactional.id": f"t-{topic}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush(60)
    producer.abort_transaction(60)
    report = jobs.job().round()
    assert (report.outcome, report.rows, report.files) == ("committed", 0, 0)
    assert jobs.job().round().outcome == "idle"


# ---------------------------------------------------------------------- other commits meanwhile
def test_of_two_jobs_one_loses_its_round_and_nothing_is_doubled(jobs, fill, topic):
    fill(topic, {0: 30, 1: 10})
    first = jobs.job(meanwhile=lambda: jobs.job().round())
    report = first.round()
    assert report.outcome == "lost"
    assert "another job has written the same records" in report.reason
    assert first.round().outcome == "idle"
    fill(topic, {0: 5})
    assert first.round().rows == 5
    assert jobs.offsets() == places({0: 35, 1: 10})
    assert jobs.data_files() == jobs.known_files(), "the files of the lost round are deleted"


def test_an_erasure_that_comes_between_makes_a_round_read_again(jobs, fill, topic):
    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})

    def fence() -> None:
        table = jobs.table()
        commit_change(table, TableChange(properties={**carried(table.metadata), ERASURE: "e"}))

    job = jobs.job(meanwhile=fence)
    report = job.round()
    assert report.outcome == "lost"
    assert "an erasure came between" in report.reason
    assert jobs.data_files() == jobs.known_files()
    assert job.round().rows == 10
    assert jobs.offsets() == places({0: 20})


def test_a_compaction_and_a_foreign_change_do_not_disturb_a_round(jobs, fill, topic):
    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})

    def others() -> None:
        table = jobs.table()
        (old,) = [one.file for one in table.scan().plan_files()]
        new = list(writing_of(table))
        commit_change(table, TableChange(added=new, removed=[old], properties=carried(table.metadata)))
        with table.transaction() as change:
            change.set_properties({"owner": "others"})

    assert jobs.job(meanwhile=others).round().outcome == "committed"
    assert jobs.offsets() == places({0: 20})
    assert jobs.table().properties["owner"] == "others"


def writing_of(table):
    """Returns the rows of a table in new files."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return _dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io)


def test_another_partitioning_meanwhile_makes_a_round_write_again(jobs, fill, topic, monkeypatch):
    monkeypatch.setattr(committing, "FIRST_PAUSE_S", 0.001)  # It is lost in each of the attempts.
    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})

    def repartition() -> None:
        with jobs.table().update_spec() as update:
            update.add_identity("partition")

    job = jobs.job(meanwhile=repartition)
    assert job.round().outcome == "lost"
    assert job.round().rows == 10
    assert jobs.offsets() == places({0: 20})


# ---------------------------------------------------------------------- dead letters and columns
def test_new_columns_are_added_and_other_types_are_dead_letters(jobs, send):
    send(0, {"a": 1}, {"a": 2, "b": "x"}, b"no json")
    send(1, {"a": "text"}, {"c": 5})
    report = jobs.job("json").round()
    assert (report.rows, report.dead) == (3, 2)
    assert [name for name in jobs.table().schema().column_names if not name.startswith(PREFIX)] == ["a", "b", "c"]
    rows = {(row["kafka_partition"], row["kafka_offset"]): row for row in jobs.table().scan().to_arrow().to_pylist()}
    assert (rows[0, 1]["a"], rows[0, 1]["b"], rows[0, 1]["c"]) == (2, "x", None)
    assert jobs.offsets(DEAD) == [(0, 2), (1, 0)]
    send(0, {"d": 1})
    assert jobs.job("json").round().rows == 1
    assert jobs.data_files() == jobs.known_files()


def test_killed_between_the_dead_letters_and_the_table_each_record_is_in_one_of_them(jobs, send, monkeypatch):
    send(0, {"a": 1}, b"bad", {"a": 2})
    send(1, b"bad")
    commit = RoundTable.commit

    def dies(self, *arguments):
        if self.name == TABLE:
            raise KeyboardInterrupt
        return commit(self, *arguments)

    monkeypatch.setattr(RoundTable, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        jobs.job("json").round()
    assert jobs.offsets(DEAD) == [(0, 1), (1, 0)]
    monkeypatch.setattr(RoundTable, "commit", commit)
    send(0, b"bad", {"a": 3})
    report = jobs.job("json").round()
    assert (report.rows, report.dead) == (3, 1)
    assert jobs.offsets(prefix=PREFIX) == [(0, 0), (0, 2), (0, 4)]
    assert jobs.offsets(DEAD) == [(0, 1), (0, 3), (1, 0)]
    send(1, b"bad", {"a": 4})
    jobs.job("json").round()
    assert jobs.offsets(DEAD) == [(0, 1), (0, 3), (1, 0), (1, 1)]
    assert jobs.offsets(prefix=PREFIX)[-1] == (1, 2)


def test_an_erasure_in_the_dead_letters_makes_a_round_read_again(jobs, send):
    send(0, {"a": 1}, b"bad")
    jobs.job("json").round()
    send(0, {"a": 2}, b"bad")

    def fence() -> None:
        dead = jobs.table(DEAD)
        commit_change(dead, TableChange(properties={**carried(dead.metadata), ERASURE: "e"}))

    job = jobs.job("json", meanwhile=fence)
    assert job.round().outcome == "lost"
    assert jobs.data_files() == jobs.known_files()
    job.round()
    assert (jobs.offsets(prefix=PREFIX), jobs.offsets(DEAD)) == ([(0, 0), (0, 2)], [(0, 1), (0, 3)])


# ---------------------------------------------------------------------- what can't be continued
def test_a_topic_that_ends_below_the_table_is_refused_once_that_is_certain(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 5})
    jobs.job().round()
    table, id_of = jobs.table(), properties_of(jobs.table().current_snapshot())
    commit_change(table, TableChange(properties={**id_of, OFFSETS: json.dumps({topic: {"0": 9, "1": 0}})}))
    monkeypatch.setattr(job_module, "SETTLE_MS", 300)
    with pytest.raises(ProgressError, match=f"{topic}-0 ends at offset 5, but the table has it up to offset 9"):
        jobs.job(on_data_loss="skip").round()
    monkeypatch.setattr(job_module, "SETTLE_MS", 60_000)
    monkeypatch.setattr(job_module.time, "sleep", lambda _: fill(topic, {0: 5}))
    assert jobs.job().round().rows == 1, "the end was behind for a moment only"


def test_a_topic_that_was_created_again_is_refused(lowtide, jobs, fill, topic):
    fill(topic, {0: 5})
    jobs.job().round()
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    make_topic(lowtide.bootstrap, topic, 2)
    jobs.cluster.forget(topic)
    with pytest.raises(ProgressError, match="deleted and created again since the table was written"):
        jobs.job().round()


def test_records_deleted_before_they_were_read_stop_the_job_or_are_skipped(lowtide, jobs, fill, topic):
    fill(topic, {0: 5})
    jobs.job().round()
    fill(topic, {0: 5})
    delete_to(lowtide.bootstrap, topic, {0: 7})
    with pytest.raises(DataLossError, match=f"{topic}-0 begins at offset 7 now, but the table has it up to offset 5"):
        jobs.job().round()
    assert jobs.job(on_data_loss="skip").round().rows == 3
    assert jobs.offsets() == [(0, number) for number in (0, 1, 2, 3, 4, 7, 8, 9)]


def test_records_deleted_while_a_task_reads_stop_the_round_and_leave_no_files(lowtide, jobs, fill, topic, monkeypatch):
    fill(topic, {0: 5, 1: 5})
    records = writing._records

    def late(task):
        delete_to(lowtide.bootstrap, topic, {0: 3})
        return records(task)

    monkeypatch.setattr(writing, "_records", late)
    with pytest.raises(DataLossError, match="were deleted before they were read"):
        jobs.job().round()
    assert jobs.data_files() == set()


def test_rows_without_progress_are_continued_only_if_asked(jobs, fill, topic):
    fill(topic, {0: 5, 1: 3})
    jobs.job().round()
    table = jobs.table()
    jobs.catalog.drop_table(TABLE)
    copy = jobs.catalog.create_table(TABLE, table.schema(), location=f"file://{jobs.folder}/copy")
    copy.append(table.scan().to_arrow())
    fill(topic, {0: 2})
    with pytest.raises(ProgressError, match="With --start-at table the job continues after the highest offset"):
        jobs.job().round()
    assert jobs.job(start_at="table").round().rows == 2
    assert jobs.job().round().outcome == "idle"
    assert jobs.offsets() == places({0: 7, 1: 3})


def test_a_table_of_another_topic_or_schema_is_refused(lowtide, jobs, fill, topic, tmp_path):
    fill(topic, {0: 5})
    jobs.job().round()
    with pytest.raises(OptionError, match=r"table db\.numbers has values of the schema raw, not json"):
        jobs.job("json").round()
    make_topic(lowtide.bootstrap, f"{topic}-2", 1)
    other = LocalJobs(lowtide.bootstrap, f"{topic}-2", tmp_path)
    try:
        with pytest.raises(ProgressError, match=f"table db.numbers has the topic {topic}, not {topic}-2"):
            other.job().round()
    finally:
        other.close()


# ---------------------------------------------------------------------- files
def test_files_have_about_the_wished_size(jobs, send):
    import os

    for _ in range(40):
        send(0, *(os.urandom(1000) for _ in range(50)))
    jobs.job(file_bytes=500_000).round()
    sizes = [one.file.file_size_in_bytes for one in jobs.table().scan().plan_files()]
    assert len(sizes) >= 4
    assert sum(size >= 400_000 for size in sizes) >= len(sizes) - 3
    assert jobs.offsets() == places({0: 2000})


def test_a_table_by_day_has_files_by_day(jobs, send):
    day_ms = 86_400_000
    for number in range(6):
        send(0, {"n": number}, timestamp=1_700_000_000_000 + number // 2 * day_ms)
    jobs.job(partition_by="day").round()
    files = list(jobs.table().scan().plan_files())
    assert sorted(one.file.record_count for one in files) == [2, 2, 2]
    assert len({str(one.file.partition) for one in files}) == 3
    rows = jobs.table().scan(row_filter="timestamp >= '2023-11-16T00:00:00+00:00'").to_arrow()
    assert rows.num_rows == 2


def test_parquet_files_have_the_ids_of_the_fields(jobs, fill, topic):
    fill(topic, {0: 3})
    jobs.job().round()
    (path,) = jobs.known_files()
    schema = pq.read_schema(path)
    ids = {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in schema}
    assert ids == {one.name: one.field_id for one in jobs.table().schema().fields}
    assert path.rpartition("/")[2].startswith("lowtide-0-")


def test_a_failed_task_leaves_no_file(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 3})

    def fails(*_arguments):
        raise RuntimeError("disk full")

    monkeypatch.setattr(writing, "parquet_path_to_id_mapping", fails)
    with pytest.raises(RuntimeError, match="disk full"):
        jobs.job().round()
    assert jobs.data_files() == set()


# ---------------------------------------------------------------------- trimming
def trimmer_of(jobs: LocalJobs, **settings) -> TableTrimmer:
    def make_admin() -> BlockingAdminClient:
        return BlockingAdminClient(jobs.cluster.settings)

    return TableTrimmer(TableTrimSettings(**settings), make_admin, SystemClock(), print)


def begins(jobs: LocalJobs) -> list[int]:
    places = {TopicPartition(jobs.topic, one): EARLIEST_TIMESTAMP for one in (0, 1)}
    return [one.offset for _, one in sorted(jobs.cluster.list_offsets(places, read_committed=True).items())]


def test_the_topic_is_trimmed_to_what_the_table_has(jobs, fill, topic):
    fill(topic, {0: 10, 1: 4})
    jobs.job().round()
    fill(topic, {0: 5})
    later, now = trimmer_of(jobs), trimmer_of(jobs, after_ms=0)
    later.on_table(jobs.table().metadata)
    assert later.finish(60_000)
    assert begins(jobs) == [0, 0]
    now.on_table(jobs.table().metadata)
    assert now.finish(60_000)
    assert begins(jobs) == [10, 4]
    assert jobs.job().round().rows == 5
    assert jobs.offsets() == places({0: 15, 1: 4})


def test_a_group_that_is_behind_protects_records(lowtide, jobs, fill, topic):
    import confluent_kafka

    fill(topic, {0: 10, 1: 4})
    jobs.job().round()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": lowtide.bootstrap, "group.id": topic})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 6)], asynchronous=False)
    consumer.close()
    trimmer = trimmer_of(jobs, after_ms=0, groups=(topic,))
    trimmer.on_table(jobs.table().metadata)
    assert trimmer.finish(60_000)
    assert begins(jobs) == [6, 0]


def test_a_topic_that_was_created_again_is_not_trimmed(lowtide, jobs, fill, topic):
    fill(topic, {0: 10})
    jobs.job().round()
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    make_topic(lowtide.bootstrap, topic, 2)
    fill(topic, {0: 10})
    jobs.cluster.forget(topic)
    trimmer = trimmer_of(jobs, after_ms=0)
    trimmer.on_table(jobs.table().metadata)
    assert trimmer.finish(60_000)
    assert begins(jobs) == [0, 0]


# ---------------------------------------------------------------------- others
@pytest.mark.parametrize(
    ("values", "kind"),
    [([{"a": 1}] * 20 + [b"bad"], "json"), ([{"a": 1}] * 3 + [b"bad"] * 3, "raw"), ([b"[1]", b"\xff"], "raw")],
)
def test_the_schema_is_chosen_by_a_sample_and_kept(jobs, send, values, kind: str):
    send(0, *values)
    options = jobs.job("auto")._options
    assert with_schema(options, jobs.catalog, jobs.cluster).schema.kind == kind
    jobs.job(kind).round()
    send(1, *[b"others"] * 200)
    assert with_schema(options, jobs.catalog, jobs.cluster).schema.kind == kind


def test_the_sample_is_of_records_that_are_there(lowtide, jobs, send, topic):
    """The first offsets of a topic may have been erased, or compacted away."""
    send(0, *[{"a": 1}] * 250)
    first = {TopicPartition(topic, 0): [(0, 229)]}
    with BlockingAdminClient(lowtide.bootstrap) as admin:
        assert all(not done.not_erased_by for done in admin.erase_records(list(first), offsets=first).values())
    assert with_schema(jobs.job("auto")._options, jobs.catalog, jobs.cluster).schema.kind == "json"


def test_an_empty_topic_does_not_show_its_schema(jobs):
    with pytest.raises(OptionError, match="has no records that show which schema its values have: give --schema"):
        with_schema(jobs.job("auto")._options, jobs.catalog, jobs.cluster)


def test_a_job_reads_over_tls_with_a_login(lowtide_secure: SimpleNamespace, lowtide_topic: str, tmp_path):
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = lowtide_secure.for_confluent_kafka
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(lowtide_topic, 1)])[lowtide_topic].result(120)
    producer = Producer(settings)
    producer.produce(lowtide_topic, b"v")
    assert producer.flush(120) == 0
    jobs = LocalJobs(settings, lowtide_topic, tmp_path)
    try:
        assert jobs.job().round().rows == 1
        trimmer = trimmer_of(jobs, after_ms=0)
        trimmer.on_table(jobs.table().metadata)
        assert trimmer.finish(60_000)
        place = TopicPartition(lowtide_topic, 0)
        assert jobs.cluster.list_offsets({place: EARLIEST_TIMESTAMP}, read_committed=True)[place].offset == 1
    finally:
        jobs.close()


def test_spark_writes_the_same_and_others_read_it(spark, jobs, fill, topic):
    import duckdb

    fill(topic, {0: 300, 1: 100})
    job = jobs.job()
    job._run_all = spark_runner(spark.sparkContext)
    assert job.round().rows == 400
    (path,) = jobs.known_files()
    rows = duckdb.sql(f"select partition, \"offset\", value from read_parquet('{path}') order by 1, 2").fetchall()
    assert [row[:2] for row in rows] == places({0: 300, 1: 100})
    assert rows[-1][2] == b"v99"
    assert spark.read.parquet(path).count() == 400


def test_the_warehouse_of_a_sqlite_catalog_is_beside_its_file():
    found = catalog_settings("sqlite:////data/catalog.db", ["s3.region=eu"])
    assert dict(found.properties) == {
        "uri": "sqlite:////data/catalog.db",
        "warehouse": "file:///data/warehouse",
        "s3.region": "eu",
    }
    assert catalog_settings("prod").name == "prod"
    with pytest.raises(OptionError, match="must be KEY=VALUE"):
        catalog_settings("prod", ["x"])

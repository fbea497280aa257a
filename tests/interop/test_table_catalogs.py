"""Tables in a REST catalog and in Glue, with their files in an object store: as safe as on one machine.

The catalog is Iceberg's own, from its tests. AWS is moto: it shows that the calls are right, not how AWS fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from lowtide.admin.finding import RecordQuery
from lowtide.pipeline.table.committing import HeadMovedError, TableChange, commit_change
from lowtide.pipeline.table.erasing import erase_rows
from lowtide.pipeline.table.files import delete_files, file_key, reached_now, stored_files
from lowtide.pipeline.table.maintenance import compact, delete_orphans, expire
from lowtide.pipeline.table.progress import ERASURE, carried
from lowtide.pipeline.table.round_table import RoundTable
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.pipeline.table.selecting import RowSelector
from tests.pipeline.conftest import make_topic
from tests.pipeline.table_jobs import TABLE, LocalJobs

from .table_catalogs import CLIENTS, aws, glue_catalog, packages, rest_catalog

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]  # of the packages of AWS

FSSPEC = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
UNCOMPRESSED = {"write.parquet.compression-codec": "uncompressed", "write.avro.compression-codec": "null"}
PERSON, DEAD, FAR_MS = b"person-7-key", f"{TABLE}_dead_letters", 2**53


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("catalogs")
    for name, package in CLIENTS.items():
        sys.path.append(str(packages(name, package)))
    with aws(folder) as store, rest_catalog(folder, store) as rest:
        yield {"rest": rest, "rest by fsspec": {**rest, **FSSPEC}, "glue": glue_catalog(store)}


@pytest.fixture(params=["rest", "rest by fsspec", "glue"])
def jobs(request, catalogs, lowtide: SimpleNamespace, lowtide_topic: str, tmp_path: Path) -> Iterator[LocalJobs]:
    make_topic(lowtide.bootstrap, lowtide_topic, 2)
    made = LocalJobs(lowtide.bootstrap, lowtide_topic, tmp_path, catalogs[request.param])
    yield made
    for name in (TABLE, DEAD):
        if made.catalog.table_exists(name):
            table = made.table(name)
            made.catalog.drop_table(name)
            delete_files(table.io, [one.path for one in stored_files(table.io, table.location())])
    made.close()


def send(jobs: LocalJobs, count: int, *, key: bytes = b"k") -> None:
    """Sends records, of which each fifth is no JSON."""
    producer = Producer({"bootstrap.servers": jobs.bootstrap})
    for number in range(count):
        value = json.dumps({"n": number}) if number % 5 else "no JSON"
        producer.produce(jobs.topic, value, key=key, partition=number % 2)
    assert producer.flush(60) == 0


def places(jobs: LocalJobs) -> list[tuple[int, int]]:
    return sorted(jobs.offsets(prefix=PREFIX) + jobs.offsets(DEAD))


def all_places(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(count // 2)]


def data_files(jobs: LocalJobs, name: str = TABLE) -> set[str]:
    table = jobs.table(name)
    stored = stored_files(table.io, table.location())
    return {one.key for one in stored if one.path.endswith(".parquet")}


def named_files(jobs: LocalJobs, name: str = TABLE) -> set[str]:
    return set(reached_now(jobs.table(name)).data)


def test_rounds_are_committed_once_beside_others(jobs):
    """Beside another job, an erasure, and a compaction; their files go."""
    send(jobs, 20)
    report = jobs.job("json").round()
    assert (report.outcome, report.rows, report.dead) == ("committed", 16, 4)
    assert jobs.job("json").round().outcome == "idle"
    send(jobs, 20)
    assert jobs.job("json", meanwhile=lambda: jobs.job("json").round()).round().outcome == "lost"
    assert places(jobs) == all_places(40)
    send(jobs, 20)

    def fence() -> None:
        table = jobs.table()
        commit_change(table, TableChange(properties={**carried(table.metadata), ERASURE: "e"}))

    assert "an erasure came between" in jobs.job("json", meanwhile=fence).round().reason
    assert jobs.job("json", meanwhile=lambda: compact(jobs.table())).round().outcome == "committed"
    assert places(jobs) == all_places(60)
    for name in (TABLE, DEAD):
        assert data_files(jobs, name) == named_files(jobs, name)


def test_a_commit_on_an_older_snapshot_is_refused(jobs):
    send(jobs, 10)
    jobs.job("json").round()
    old, new = jobs.table(), jobs.table()
    commit_change(new, TableChange(properties=carried(new.metadata)))
    with pytest.raises(HeadMovedError):
        commit_change(old, TableChange(properties=carried(old.metadata)))
    assert len(jobs.table().metadata.snapshots) == 2


def test_a_commit_whose_answer_is_lost_is_found(jobs, monkeypatch):
    """The catalog has done it, and the connection is gone."""
    catalog, commit, calls = type(jobs.catalog), type(jobs.catalog).commit_table, []

    def cut(self, *arguments):
        answer = commit(self, *arguments)
        calls.append(answer)
        if len(calls) == 1:
            raise ConnectionError("reset by peer")
        return answer

    send(jobs, 10)
    jobs.job("json").round()
    send(jobs, 10)
    monkeypatch.setattr(catalog, "commit_table", cut)
    assert jobs.job("json").round().outcome == "committed"
    assert places(jobs) == all_places(20)


def test_files_of_a_dead_round_go_with_the_next_commit(jobs, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_arguments):
        raise Killed

    send(jobs, 10)
    jobs.job("json").round()
    before = data_files(jobs)
    send(jobs, 10)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RoundTable, "commit", killed)
        patched.setattr(RoundTable, "delete", lambda *_: None)
        jobs.job("json").round()
    left = data_files(jobs) - before
    assert left
    jobs.job("json").round()
    assert not left & data_files(jobs)
    assert places(jobs) == all_places(20)


def test_a_person_is_erased_from_all_objects(jobs):
    send(jobs, 10)
    jobs.job("json").round()
    for name in (TABLE, DEAD):
        with jobs.table(name).transaction() as change:
            change.set_properties(UNCOMPRESSED)
    for key in (PERSON, b"other", PERSON):
        send(jobs, 10, key=key)
        jobs.job("json").round()
    assert objects_with(jobs, PERSON)
    selector = RowSelector(RecordQuery(keys=frozenset([PERSON])))
    for name, rows in ((TABLE, 16), (DEAD, 4)):
        done = erase_rows(jobs.table(name), selector, uuid4())
        assert (done.rows, done.not_reached) == (rows, ())
        assert len(jobs.table(name).metadata.snapshots) == 1
    assert objects_with(jobs, PERSON) == []
    assert len(places(jobs)) == 20
    send(jobs, 10)
    assert jobs.job("json").round().rows == 8


def objects_with(jobs: LocalJobs, mark: bytes) -> list[str]:
    """Returns the objects below the locations of both tables that have these bytes."""
    found = []
    for name in (TABLE, DEAD):
        table = jobs.table(name)
        for one in stored_files(table.io, table.location()):
            with table.io.new_input(one.path).open() as content:
                if mark in content.read():
                    found.append(one.path)
    return found


def test_maintenance_deletes_what_nothing_needs_and_nothing_else(jobs):
    for _ in range(3):
        send(jobs, 10)
        jobs.job("json").round()
    before = places(jobs)
    table = jobs.table()
    assert compact(table).merged == 3
    assert len(expire(table, FAR_MS).snapshots) == 3
    assert data_files(jobs) == named_files(jobs)
    loose = f"{table.location()}/data/loose.parquet"
    with table.io.new_output(loose).create() as output:
        output.write(b"left behind")
    now_ns = max(one.modified_ns for one in stored_files(table.io, table.location()))
    assert delete_orphans(table, now_ns).files == (), "it is young"
    assert [file_key(one) for one in delete_orphans(table, now_ns + 4 * 86_400 * 10**9).files if one == loose]
    assert data_files(jobs) == named_files(jobs)
    assert places(jobs) == before


def test_the_job_runs_with_spark_and_the_commands_with_it(catalogs, lowtide, lowtide_topic, tmp_path):
    """Executors reach the store by the properties of the catalog, which the job gives them."""
    jobs = LocalJobs(lowtide.bootstrap, lowtide_topic, tmp_path, catalogs["rest"])
    properties = {key: value for key, value in catalogs["rest"].items() if key != "uri"}
    words = [word for key, value in properties.items() for word in ("--catalog-property", f"{key}={value}")]
    where = ["--catalog", catalogs["rest"]["uri"], *words, "--table", TABLE]
    make_topic(lowtide.bootstrap, lowtide_topic, 2)
    try:
        send(jobs, 100, key=PERSON)
        run("table", "run", lowtide_topic, "-b", lowtide.bootstrap, *where, "--once", "--schema", "json")
        assert places(jobs) == all_places(100)
        erase = ("records", "erase", lowtide_topic, "-b", lowtide.bootstrap, "--key", PERSON.decode(), "--yes")
        run(*erase, *where)
        assert places(jobs) == []
        for command in ("compact", "expire", "orphans"):
            run("table", command, *where)
        told = json.loads(run("table", "status", "-b", lowtide.bootstrap, *where, "-o", "json"))
        assert [one["table_until"] for one in told["partitions"]] == [50, 50]
    finally:
        jobs.close()


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lowtide.cli.main", *words],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout

"""Files of rounds that died go with the next commit, and never those of a round that may still be committed."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest

from lowtide.pipeline.table.files import data_file_name
from lowtide.pipeline.table.loose import delete_dead_rounds
from lowtide.pipeline.table.maintenance import compact, delete_orphans, expire
from lowtide.pipeline.table.progress import head_id
from lowtide.pipeline.table.round_table import RoundTable

from .table_jobs import TABLE, LocalJobs

FAR_MS = 2**53


@pytest.fixture
def jobs(lowtide: SimpleNamespace, topic: str, tmp_path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    yield made
    made.close()


class Killed(BaseException):
    """The end of a process: nothing that cleans up runs after it."""


def dead_round(jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch, kind: str = "raw") -> set[str]:
    """Runs a round that dies when its files are written, and returns them."""
    before = jobs.data_files()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RoundTable, "delete", lambda *_: None)
        patched.setattr(RoundTable, "commit", killed)
        jobs.job(kind).round()
    left = jobs.data_files() - before
    assert left
    return left


def killed(*_arguments):
    raise Killed


def test_the_next_commit_deletes_the_files_of_a_round_that_died(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch)
    jobs.job().round()
    assert not left & jobs.data_files()
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch)
    assert jobs.job().round().rows == 10
    assert not left & jobs.data_files()
    assert jobs.data_files() == jobs.known_files()
    assert jobs.offsets() == [(0, number) for number in range(20)]


def test_dead_letters_of_a_round_that_died_go_too(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch, "json")
    assert jobs.job("json").round().dead == 10
    assert not left & jobs.data_files()
    assert jobs.data_files() == jobs.known_files()


def test_manifests_of_a_commit_that_died_go_with_its_files(jobs, fill, topic, monkeypatch):
    from pyiceberg.table import Table

    fill(topic, {0: 10})
    jobs.job().round()
    before = set(jobs.folder.glob("warehouse/**/*.avro"))
    fill(topic, {0: 10})
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RoundTable, "delete", lambda *_: None)
        patched.setattr("pyiceberg.table.update.snapshot._SnapshotProducer._clean_all_uncommitted", lambda *_: None)
        patched.setattr(Table, "_do_commit", killed)
        jobs.job().round()
    left = set(jobs.folder.glob("warehouse/**/*.avro")) - before
    assert len(left) == 2
    jobs.job().round()
    assert not left & set(jobs.folder.glob("warehouse/**/*.avro"))
    assert jobs.offsets() == [(0, number) for number in range(20)]


def test_a_round_that_another_job_writes_now_keeps_its_files_until_there_is_progress(jobs, fill, topic):
    """A second job can't know whether the round is dead, so it waits for its own commit, which decides that."""
    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})
    removed = []
    report = jobs.job(meanwhile=lambda: removed.append(delete_dead_rounds(jobs.table()))).round()
    assert (report.outcome, removed) == ("committed", [[]])
    fill(topic, {0: 10})
    live = jobs.job(meanwhile=lambda: jobs.job().round())
    assert live.round().outcome == "lost"
    assert live.round().outcome == "idle"
    assert jobs.data_files() == jobs.known_files()
    assert jobs.offsets() == [(0, number) for number in range(30)]


def test_a_round_after_a_compaction_keeps_its_files(jobs, fill, topic):
    """The compaction carries the progress on: a round that is based on either snapshot may be committed."""
    for _ in range(2):
        fill(topic, {0: 10})
        jobs.job().round()
    fill(topic, {0: 10})

    def others() -> None:
        compact(jobs.table())
        assert delete_dead_rounds(jobs.table()) == []

    assert jobs.job(meanwhile=others).round().outcome == "committed"
    assert jobs.offsets() == [(0, number) for number in range(30)]


def test_a_round_whose_snapshot_is_expired_meanwhile_is_repeated_and_its_files_go_then(jobs, fill, topic):
    for _ in range(2):
        fill(topic, {0: 10})
        jobs.job().round()
    fill(topic, {0: 10})

    def others() -> None:
        compact(jobs.table())
        expire(jobs.table(), FAR_MS)
        assert delete_dead_rounds(jobs.table()) == []

    job = jobs.job(meanwhile=others)
    assert job.round().outcome == "lost"
    assert jobs.data_files() > jobs.known_files()
    assert job.round().outcome == "committed"
    assert jobs.data_files() == jobs.known_files()
    assert jobs.offsets() == [(0, number) for number in range(30)]


def test_only_files_of_rounds_are_deleted(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch)
    folder = jobs.folder / "warehouse/db/numbers/data"
    others = [folder / data_file_name(head_id(jobs.table().metadata), uuid4(), 0), folder / "foreign.parquet"]
    for each in others:
        each.write_bytes(b"under way")
    jobs.job().round()
    assert not left & jobs.data_files()
    assert all(each.exists() for each in others)
    assert delete_orphans(jobs.table(), 0).files == ()


def test_files_stay_whose_snapshot_is_unknown_unless_they_are_older_than_the_progress(jobs, fill, topic, monkeypatch):
    import os

    fill(topic, {0: 10})
    jobs.job().round()
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch)
    other = jobs.folder / f"warehouse/db/numbers/data/lowtide-4711-{uuid4().hex}-data-0-0-0.parquet"
    other.write_bytes(b"of a branch that nobody knows")
    os.utime(other, (2**32, 2**32))
    jobs.job().round()
    assert not left & jobs.data_files()
    assert other.exists()
    os.utime(other, (1, 1))
    fill(topic, {0: 10})
    jobs.job().round()
    assert not other.exists()


def test_files_that_may_belong_to_other_tables_stay(jobs, fill, topic, monkeypatch):
    fill(topic, {0: 10})
    jobs.job().round()
    with jobs.table().transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    fill(topic, {0: 10})
    left = dead_round(jobs, monkeypatch)
    jobs.job().round()
    assert left <= jobs.data_files()


def test_a_storage_that_fails_to_list_stops_no_round(jobs, fill, topic, monkeypatch, caplog):
    def fails(*_arguments):
        raise OSError("access denied")

    monkeypatch.setattr("lowtide.pipeline.table.loose.stored_files", fails)
    fill(topic, {0: 10})
    assert jobs.job().round().outcome == "committed"
    assert f"table {TABLE}: files of rounds that died are left behind: access denied" in caplog.text

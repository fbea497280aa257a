"""Commits on one snapshot: what becomes of them beside other commits, and when their answers are lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from lowtide.pipeline.table import committing
from lowtide.pipeline.table.committing import (
    CommitUnknownError,
    HeadMovedError,
    RoundVerdict,
    TableChange,
    commit_change,
    delete_files,
    judge,
)
from lowtide.pipeline.table.progress import COMMIT, ERASURE, carried, head_id, progress_of, properties_of

from .tables import files_of, new_table, offsets_in, progress, rows_of


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(committing, "FIRST_PAUSE_S", 0.0)


def append(table, start: int, until: int, **properties: str):
    change = TableChange(
        added=files_of(table, rows_of(0, start, until)), properties={**progress({0: until}, f"r{until}"), **properties}
    )
    return commit_change(table, change)


def copy(catalog, table):
    return catalog.load_table(table.name())


def metadata_files(table) -> set[str]:
    return {path.name for path in Path(table.location().removeprefix("file://"), "metadata").glob("*.avro")}


def test_a_commit_adds_files_and_properties_in_one_snapshot(catalog, table):
    first = append(table, 0, 3)
    second = append(table, 3, 5)
    assert second.parent_snapshot_id == first.snapshot_id == table.metadata.snapshots[0].snapshot_id
    assert properties_of(second)["lowtide.offsets"] == '{"numbers":{"0":5}}'
    assert properties_of(second)[COMMIT] != properties_of(first)[COMMIT]
    assert offsets_in(copy(catalog, table)) == [(0, number) for number in range(5)]


def test_a_commit_without_files_only_makes_progress(table):
    snapshot = commit_change(table, TableChange(properties=progress({0: 7})))
    assert head_id(table.metadata) == snapshot.snapshot_id
    assert offsets_in(table) == []


@pytest.mark.parametrize("retries", ["0", "100"])
def test_a_commit_on_an_older_snapshot_fails_whatever_the_table_says_about_retries(catalog, retries: str):
    table = new_table(catalog, **{"commit.retry.num-retries": retries})
    other = copy(catalog, table)
    append(other, 0, 3)
    before = metadata_files(table)
    with pytest.raises(HeadMovedError, match=r"another commit to table db\.numbers came first"):
        append(table, 0, 3)
    assert offsets_in(table) == [(0, 0), (0, 1), (0, 2)]
    assert metadata_files(table) == before, "the manifests of the failed commit are deleted"


def test_a_change_without_a_snapshot_does_not_disturb_a_commit(catalog, table):
    append(table, 0, 1)
    other = copy(catalog, table)
    with other.transaction() as change:
        change.set_properties({"a": "b"})
    append(table, 1, 2)
    assert offsets_in(table) == [(0, 0), (0, 1)]
    assert table.properties["a"] == "b"


def test_files_for_another_partitioning_are_not_committed(catalog, table):
    append(table, 0, 1)
    other = copy(catalog, table)
    with other.update_spec() as update:
        update.add_identity("partition")
    with pytest.raises(HeadMovedError):
        append(table, 1, 2)
    assert offsets_in(table) == [(0, 0)]


@pytest.mark.parametrize("error", [CommitStateUnknownException, ConnectionError, CommitFailedException])
def test_a_commit_whose_answer_is_lost_is_found(monkeypatch, catalog, table, error):
    commit, calls = table.catalog.commit_table, []

    def lost(*arguments):
        calls.append(1)
        commit(*arguments)
        raise error("lost")

    monkeypatch.setattr(table.catalog, "commit_table", lost)
    snapshot = append(table, 0, 3)
    assert len(calls) == 1
    assert head_id(table.metadata) == snapshot.snapshot_id
    assert offsets_in(table) == [(0, 0), (0, 1), (0, 2)]


def test_a_commit_that_did_not_arrive_is_sent_again(monkeypatch, table):
    commit, calls = table.catalog.commit_table, []

    def lost(*arguments):
        calls.append(1)
        if len(calls) < 4:
            raise CommitStateUnknownException("lost")
        return commit(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", lost)
    append(table, 0, 3)
    assert offsets_in(table) == [(0, 0), (0, 1), (0, 2)]


def test_a_commit_that_arrives_late_is_done_once(monkeypatch, table):
    """The catalog does the first request while the second one is on its way."""
    commit, waiting = table.catalog.commit_table, []

    def late(*arguments):
        if not waiting:
            waiting.append(arguments)
            raise CommitStateUnknownException("lost")
        commit(*waiting[0])
        return commit(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", late)
    append(table, 0, 3)
    assert offsets_in(table) == [(0, 0), (0, 1), (0, 2)]
    assert len(table.metadata.snapshots) == 1


def test_without_a_catalog_the_outcome_stays_unknown_and_the_files_stay(monkeypatch, table):
    def away(*_arguments):
        raise ConnectionError("away")

    before = metadata_files(table)
    monkeypatch.setattr(table.catalog, "commit_table", away)
    monkeypatch.setattr(table.catalog, "load_table", away)
    with pytest.raises(CommitUnknownError, match="away"):
        append(table, 0, 3)
    assert len(metadata_files(table)) == len(before) + 2


def test_removed_files_leave_no_entry_in_the_new_manifests(table):
    append(table, 0, 3)
    (old,) = [one.file for one in table.scan().plan_files()]
    snapshot = commit_change(
        table, TableChange(added=files_of(table, rows_of(0, 1, 3)), removed=[old], properties=carried(table.metadata))
    )
    entries = [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    assert len(entries) == 1
    assert old.file_path not in entries
    assert offsets_in(table) == [(0, 1), (0, 2)]
    assert progress_of(table.metadata).round_id == "r3", "progress is carried on"
    assert properties_of(snapshot)["total-records"] == "2"


def test_all_rows_can_be_removed(table):
    append(table, 0, 3)
    (old,) = [one.file for one in table.scan().plan_files()]
    commit_change(table, TableChange(removed=[old], properties=carried(table.metadata)))
    assert offsets_in(table) == []
    append(table, 3, 4)
    assert offsets_in(table) == [(0, 3)]


def test_removing_a_file_that_is_gone_fails(catalog, table):
    append(table, 0, 3)
    (old,) = [one.file for one in table.scan().plan_files()]
    commit_change(table, TableChange(removed=[old]))
    with pytest.raises(Exception, match="Missing required files to delete"):
        commit_change(table, TableChange(removed=[old]))


# ---------------------------------------------------------------------- the verdict
def test_after_a_foreign_commit_a_round_commits_again(catalog, table):
    append(table, 0, 1)
    base, before = head_id(table.metadata), progress_of(table.metadata)
    copy(catalog, table).append(rows_of(9, 0, 1))
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.COMMIT_AGAIN


def test_after_a_commit_that_carries_progress_on_a_round_commits_again(catalog, table):
    append(table, 0, 1)
    base, before = head_id(table.metadata), progress_of(table.metadata)
    commit_change(copy(catalog, table), TableChange(properties=carried(table.metadata)))
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.COMMIT_AGAIN


def test_after_the_progress_of_another_job_a_round_is_thrown_away(catalog, table):
    before = progress_of(table.metadata)
    append(copy(catalog, table), 0, 1)
    assert judge(table.refresh().metadata, None, before) is RoundVerdict.TAKEN
    base, before = head_id(table.metadata), progress_of(table.metadata)
    append(copy(catalog, table), 1, 2)
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.TAKEN


def test_after_a_fence_a_round_is_thrown_away_also_if_others_committed_after_it(catalog, table):
    append(table, 0, 1)
    base, before = head_id(table.metadata), progress_of(table.metadata)
    commit_change(copy(catalog, table), TableChange(properties={**carried(table.metadata), ERASURE: "e"}))
    copy(catalog, table).append(rows_of(9, 0, 1))
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.FENCED
    base, before = head_id(table.metadata), progress_of(table.metadata)
    copy(catalog, table).append(rows_of(9, 1, 2))
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.COMMIT_AGAIN, "a round after the fence"


def test_with_expired_snapshots_in_between_nothing_is_certain(catalog, table):
    append(table, 0, 1)
    base, before = head_id(table.metadata), progress_of(table.metadata)
    other = copy(catalog, table)
    commit_change(other, TableChange(properties={**carried(other.metadata), ERASURE: "e"}))
    commit_change(other, TableChange(properties=carried(other.metadata)))
    for snapshot in other.metadata.snapshots[:-1]:
        other.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.UNCLEAR


def test_after_a_roll_back_nothing_is_certain(table):
    first = append(table, 0, 1)
    append(table, 1, 2)
    base, before = head_id(table.metadata), progress_of(table.metadata)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert judge(table.refresh().metadata, base, before) is RoundVerdict.UNCLEAR


def test_files_are_deleted_and_missing_ones_do_not_matter(table, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"a")
    assert delete_files(table.io, [f"file://{tmp_path}/a", f"file://{tmp_path}/b"]) == 0
    assert not (tmp_path / "a").exists()

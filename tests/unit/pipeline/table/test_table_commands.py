"""`records erase --table` without a topic, `table compact`, `expire` and `orphans`, and their refusals."""

from __future__ import annotations

import json

import pytest
from pyiceberg.transforms import TruncateTransform

from lowtide.cli.main import main
from lowtide.pipeline.table.erased import ERASURES_KEPT, RUNS_KEPT, remember, statements_of
from lowtide.pipeline.table.progress import MAIN

from .deletes import delete_equal
from .persons import append_round, by_key, erase, files_with, key_of, persons_table, values_in
from .tables import new_table

ID = "6b2d7f0e-7d5c-4b8e-9b43-0c2f5a9a1c11"


@pytest.fixture
def people(catalog):
    """A table of persons, and its table of dead letters."""
    table = persons_table(catalog)
    append_round(table, [0, 1, 2], 0)
    append_round(table, [1, 3], 3)
    append_round(persons_table(catalog, "db.persons_dead_letters"), [1, 1], 5)
    return table


@pytest.fixture
def lowtide(tmp_path, capsys):
    """`lowtide(words, code=0)` runs a command on the catalog. Returns its output, or its error."""

    def lowtide(*words: str, code: int = 0, table: str = "db.persons", catalog: str | None = None) -> str:
        place = catalog or f"sqlite:///{tmp_path}/catalog.db"
        assert main([*words, "--table", table, "--catalog", place]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return lowtide


def test_a_person_is_erased_from_the_table_and_from_its_dead_letters(people, lowtide) -> None:
    out = lowtide("records", "erase", "--key", "person-1-key", "--yes", "--erasure-id", ID, "-o", "json")
    document = json.loads(out)
    assert (document["dry_run"], document["erasure_id"]) == (False, ID)
    assert [(each["table"], each["rows"], each["error"]) for each in document["tables"]] == [
        ("db.persons", 2, None),
        ("db.persons_dead_letters", 2, None),
    ]
    assert files_with(people, 1) == []
    assert values_in(people) == [b"secret-0-0", b"secret-2-2", b"secret-3-4"]
    assert "person-1" not in out, "no key is shown"


def test_a_dry_run_erases_nothing(people, lowtide) -> None:
    assert lowtide("records", "erase", "--key", "person-1-key", "--dry-run") == (
        "db.persons: 2 rows would be erased.\ndb.persons_dead_letters: 2 rows would be erased.\n"
    )
    assert len(values_in(people)) == 5


def test_rows_are_found_by_header_and_by_offset(people, lowtide) -> None:
    lowtide("records", "erase", "--header", "owner=owner-3", "--yes")
    assert files_with(people, 3) == []
    lowtide("records", "erase", "--offsets", "0:0,2-3", "--yes")
    assert values_in(people) == [b"secret-1-1"]


def test_what_is_left_is_said_and_is_no_success(people, lowtide) -> None:
    people.manage_snapshots().create_tag(people.metadata.refs[MAIN].snapshot_id, "audit").commit()
    err = lowtide("records", "erase", "--key", "person-1-key", "--yes", code=1)
    assert "Not erased yet: the tag audit holds such rows: remove it, then run the same command again." in err
    assert statements_of(people.refresh(), erase(people, 4).erasure_id) == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--key", "x"), 4, "this command asks for confirmation"),
        (("--key", "x", "--yes", "--tombstone"), 2, "--tombstone, --standing and --force need a topic."),
        (("--key", "x", "--header", "a=b", "--yes"), 2, "exclude each other"),
        (("orders:0", "--key", "x", "--yes"), 2, "--table covers whole topics: give them without partitions."),
    ],
)
def test_wrong_words_erase_nothing(people, lowtide, words, code: int, sentence: str) -> None:
    assert sentence in lowtide("records", "erase", *words, code=code)
    assert len(values_in(people)) == 5


def test_a_missing_table_is_named(people, lowtide) -> None:
    for words in (("records", "erase", "--key", "x", "--yes"), ("table", "compact"), ("table", "expire")):
        assert "the catalog has no table db.nothing." in lowtide(*words, table="db.nothing", code=2)
    assert "must be named with its namespace" in lowtide("table", "orphans", table="nothing", code=2)


def test_a_table_that_cannot_be_rewritten_is_refused_before_anything_is_erased(people, lowtide) -> None:
    delete_equal(people, key_of(0))
    err = lowtide("records", "erase", "--key", "person-1-key", "--yes", code=1)
    assert "table db.persons: it has equality deletes, which PyIceberg can't read" in err
    assert "Nothing was erased." in err
    assert files_with(people, 1)


def test_a_table_of_other_columns_is_refused(catalog, lowtide) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    catalog.create_namespace_if_not_exists("db")
    catalog.create_table("db.persons", Schema(NestedField(1, "id", LongType(), required=False)))
    assert "it lacks the columns of records" in lowtide("records", "erase", "--key", "x", "--yes", code=1)


def test_a_table_whose_file_names_have_keys_is_refused(people, lowtide) -> None:
    with people.update_spec() as update:
        update.add_field("key", TruncateTransform(4), "key_start")
    err = lowtide("records", "erase", "--key", "person-1-key", "--yes", code=1)
    assert "table db.persons: it is partitioned by the key (key_start), so names of files have keys" in err


def test_maintenance_says_what_it_did(people, lowtide) -> None:
    [main_table, dead] = json.loads(lowtide("table", "compact", "-o", "json"))["tables"]
    assert (main_table["merges"], main_table["files_before"], main_table["files_after"]) == (1, 2, 1)
    assert dead["merges"] == 0
    assert "db.persons: 2 snapshots and 0 files would be removed." in lowtide(
        "table", "expire", "--older-than", "0s", "--dry-run"
    )
    assert "db.persons: 2 snapshots and " in lowtide("table", "expire", "--older-than", "0s")
    assert "db.persons: 0 snapshots and 0 files removed." in lowtide("table", "orphans")
    assert "less than 1h" in lowtide("table", "orphans", "--older-than", "59m", code=2)
    assert len(values_in(people)) == 5


def test_a_table_remembers_the_newest_erasures_only(catalog) -> None:
    from lowtide.pipeline.table.erased import statement_of

    table = new_table(catalog, "db.persons")
    done = [erase(table, 1) for _ in range(ERASURES_KEPT + 2)]
    for number, each in enumerate(done):
        remember(table, statement_of(each, 1_600_000_000_000 + number))
    known = [each for each in done if statements_of(table.refresh(), each.erasure_id)]
    assert known == done[2:]
    for number in range(RUNS_KEPT + 2):
        remember(table, statement_of(done[-1], 1_700_000_000_000 + number))
    times = [each.confirmed_at[-4:-1] for each in statements_of(table.refresh(), done[-1].erasure_id)]
    assert len(times) == RUNS_KEPT
    assert times[-1] == "006"
    assert by_key(1).columns == ("key",)

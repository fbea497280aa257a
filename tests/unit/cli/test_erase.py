"""`lowtide records erase`: what it sends, what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Self
from unittest.mock import patch
from uuid import UUID

import pytest

from lowtide.admin import AdminError, BrokerAnsweredError, EraseUnsupportedError, PartitionErasure, TopicPartition
from lowtide.admin.cluster_view import ClusterView, PartitionDescription, TopicDescription
from lowtide.admin.deletion import DeleteStage
from lowtide.cli.main import main
from lowtide.cli.outcome import ExitCode
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRange

ID = UUID(int=7)
AWAY = {3: "it is not live"}


def described(name: str, *, is_internal: bool = False) -> TopicDescription:
    partitions = {
        number: PartitionDescription(partition=number, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        for number in range(2)
    }
    return TopicDescription(name=name, topic_id=name.encode().ljust(16), is_internal=is_internal, partitions=partitions)


class ErasingClient:
    """A client of a cluster with some topics, which remembers what it is asked to erase."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.results: dict[TopicPartition, AdminError] = {}
        self.not_erased_by: dict[int, str] = {}
        self.newest: tuple[OffsetRange, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def call(self) -> ErasingClient:
        return self

    async def view(self, names: Any) -> ClusterView:
        topics = {each.name: each for each in (described("orders"), described("own", is_internal=True))}
        found = topics if names is None else {name: topics[name] for name in names if name in topics}
        return ClusterView(cluster_id="c", controller_id=1, brokers={}, topics=found, errors={})

    async def erase_records(self, partitions: Any, **given: Any) -> Any:
        self.asked.append({"partitions": partitions, **given})
        given["on_progress"](1, 2)
        dry = {"erasures_end": -1, "erased_by": (), "not_erased_by": {}, "newest": self.newest}
        done = {"erasures_end": 9, "erased_by": (1, 2), "not_erased_by": self.not_erased_by}
        found = PartitionErasure(
            erasure_id=given["erasure_id"] or ID,
            searched_from=0,
            searched_to=8,
            count=2,
            **(dry if given["dry_run"] else done),
        )
        return {key: self.results.get(key, found) for key in partitions}


class ErasingPerson(io.StringIO):
    """A terminal where someone types."""

    def isatty(self) -> bool:
        return True


def run(client: ErasingClient, *words: str, stdin: Any = None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    if isinstance(stdin, ErasingPerson):
        err.isatty = lambda: True
    with (
        patch("lowtide.admin.client.AdminClient", lambda _: client),
        patch.object(sys, "stdin", stdin if stdin is not None else io.StringIO()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        return main(["records", "erase", *words]), out.getvalue(), err.getvalue()


def test_the_table_says_what_is_done() -> None:
    """Protects the operator, who has to answer a person."""
    client = ErasingClient()
    code, output, error = run(client, "orders", "--key", "one", "--key", "two", "--erasure-id", str(ID), "--yes")
    assert (code, error) == (ExitCode.DONE, "")
    assert output.splitlines() == [
        "topic   partition  searched from  searched to  records found  erased by  not yet by  error",
        "orders          0              0            8              2  1, 2",
        "orders          1              0            8              2  1, 2",
    ]
    (asked,) = client.asked
    assert asked["partitions"] == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    assert (asked["keys"], asked["header"], asked["offsets"]) == ({b"one", b"two"}, None, None)
    assert (asked["erasure_id"], asked["dry_run"], asked["topic_ids"]) == (ID, False, {"orders": b"orders".ljust(16)})


def test_a_broker_that_is_not_clean_fails_the_command() -> None:
    """Protects from taking a half-done erasure for a finished one."""
    client = ErasingClient()
    client.not_erased_by = AWAY
    code, output, error = run(client, "orders:0", "--header", "who=one", "--yes")
    assert code == ExitCode.FAILED
    assert output.splitlines()[1].endswith("1, 2       3 (it is not live)")
    assert "Not erased yet at broker 3 (1 partition: it is not live): run the same command again" in error
    assert client.asked[0]["header"] == ("who", b"one")


def test_json_has_all_of_it() -> None:
    """Protects scripts."""
    client = ErasingClient()
    client.not_erased_by = AWAY
    client.results = {
        TopicPartition("orders", 1): BrokerAnsweredError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders-1")
    }
    code, output, error = run(client, "orders", "--key", "secret", "--yes", "--output", "json")
    document, *_ = output.split("\n{")
    told = json.loads(document)
    assert code == ExitCode.FAILED
    assert told == {
        "dry_run": False,
        "erasure_id": str(ID),
        "nonce": None,
        "standing_until": None,
        "partitions": [
            {
                "topic": "orders",
                "partition": 0,
                "searched_from": 0,
                "searched_to": 8,
                "records": 2,
                "newest_versions": [],
                "erasures_end": 9,
                "erased_by": [1, 2],
                "not_erased_by": [{"broker": 3, "message": "it is not live"}],
                "error": None,
            },
            {"topic": "orders", "partition": 1, "error": {"message": "orders-1: TOPIC_AUTHORIZATION_FAILED"}},
        ],
    }
    assert "1 partition failed" in error
    assert "secret" not in output + error


def test_a_dry_run_says_what_would_be_erased() -> None:
    """Protects from an erasure by mistake: there is no way back."""
    client = ErasingClient()
    code, output, _ = run(client, "orders", "--key", "one", "--dry-run")
    assert code == ExitCode.DONE
    assert output.splitlines()[0].split("  ")[-1] == "error"
    assert output.splitlines()[-1] == "4 records would be erased. Nothing was erased."
    assert [each["dry_run"] for each in client.asked] == [True]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--offsets", "0:5-9"), "orders:0: 5, 7-9 are the newest versions of their keys. Without --force, "),
        (("--offsets", "0:5-9", "--force"), "orders:0: 5, 7-9 are the newest versions of their keys. These keys "),
        (("--header", "who=one"), "orders:1: 5, 7-9 are the newest versions of their keys. These keys "),
    ],
)
def test_a_dry_run_says_what_is_the_newest_version_of_a_key(words: tuple[str, ...], told: str) -> None:
    """Protects from a refusal that the rehearsal didn't tell, and from a key that loses its value by mistake."""
    client = ErasingClient()
    client.newest = (OffsetRange(5, 5), OffsetRange(7, 9))
    code, output, _ = run(client, "orders", *words, "--dry-run")
    assert code == ExitCode.DONE
    assert told in output
    assert ("nothing is erased there" in output) == ("Without" in told)
    would = {"--force": 2, "0:5-9": 0, "who=one": 4}[words[-1]]
    assert output.splitlines()[-1] == f"{would} records would be erased. Nothing was erased."
    code, output, _ = run(client, "orders", *words, "--dry-run", "--output", "json")
    assert json.loads(output)["partitions"][0]["newest_versions"] == [[5, 5], [7, 9]]


def test_the_question_says_what_would_be_refused() -> None:
    """Protects someone who can be asked as a dry run does."""
    client = ErasingClient()
    client.newest = (OffsetRange(5, 5),)
    _, _, error = run(client, "orders", "--offsets", "0:5", stdin=ErasingPerson("n\n"))
    assert "orders:0: 5 is the newest version of its key. Without --force, " in error


@pytest.mark.parametrize(
    ("typed", "code", "dry_runs"), [("y\n", ExitCode.DONE, [True, False]), ("n\n", ExitCode.NOT_CONFIRMED, [True])]
)
def test_it_shows_what_it_found_and_asks(typed: str, code: ExitCode, dry_runs: list[bool]) -> None:
    """Protects from an erasure by mistake, where someone can be asked."""
    client = ErasingClient()
    ended, output, error = run(client, "orders", "--key", "one", stdin=ErasingPerson(typed))
    assert (ended, [each["dry_run"] for each in client.asked]) == (code, dry_runs)
    assert "Erase 4 records of 2 partitions from the files of all brokers?" in error
    assert "records found" in output


def test_nothing_is_erased_if_the_search_before_the_question_failed() -> None:
    """Protects from a confirmation of something unknown."""
    client = ErasingClient()
    client.results = {
        TopicPartition("orders", 1): BrokerAnsweredError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders-1")
    }
    code, _, error = run(client, "orders", "--key", "one", stdin=ErasingPerson("y\n"))
    assert code == ExitCode.FAILED
    assert "1 partition could not be searched. Nothing was erased." in error
    assert [each["dry_run"] for each in client.asked] == [True]


def test_exact_offsets_are_of_their_partitions() -> None:
    """Protects the other partitions' records at the same offsets."""
    client = ErasingClient()
    code, _, error = run(client, "orders", "--offsets", "1:7,3-4,5", "--offsets", "0:9", "--yes")
    assert (code, error) == (ExitCode.DONE, "")
    assert client.asked[0]["offsets"] == {
        TopicPartition("orders", 0): ((9, 9),),
        TopicPartition("orders", 1): ((3, 5), (7, 7)),
    }
    assert client.asked[0]["partitions"] == [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def test_a_broker_that_is_too_old_is_one_sentence() -> None:
    """Protects from a table of errors that all say the same."""
    client = ErasingClient()
    reason = "nothing is erased: broker 3 does not answer EraseRecords"
    for number in range(2):
        key = TopicPartition("orders", number)
        client.results[key] = EraseUnsupportedError(key, DeleteStage.SENDING, reason)
    code, output, error = run(client, "orders", "--key", "one", "--yes")
    assert (code, output) == (ExitCode.FAILED, "")
    assert error.splitlines()[-1].endswith(f"{reason}.")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("orders",), "give one of --key, --keys-from, --header and --offsets"),
        (("orders", "--key", "secret", "--offsets", "0:1"), "--key and --offsets exclude each other"),
        (("orders", "--key", "secret", "--header", "a=secret"), "--key and --header exclude each other"),
        (("orders", "--key", "secret", "--key-format", "hex"), "the key is not hex"),
        (("orders", "--keys-from", "/dev/null"), "has no key"),
        (("orders", "--keys-from", "-"), "standard input has no key"),
        (("orders", "--header", "secret"), "NAME=VALUE"),
        (("--key", "secret"), "give a topic"),
        (("absent", "--key", "secret"), "no topic absent"),
        (("orders:9", "--key", "secret"), "no partition 9"),
        (("own", "--key", "secret"), "is an internal topic"),
        (("--topics-matching", "nothing-*", "--key", "secret"), "no topic matches"),
        (("orders", "--offsets", "17"), "write a partition and its offsets"),
        (("orders", "--offsets", "0:"), "write a partition and its offsets"),
        (("orders", "--offsets", "0:1-"), "write a partition and its offsets"),
        (("orders", "--offsets", "0:9-3"), "ends before it starts"),
        (("orders", "--offsets", "9:1"), "no partition 9"),
        (("orders:0", "--offsets", "0:1"), "exactly one topic, without partitions"),
        (("orders", "own", "--offsets", "0:1"), "exactly one topic, without partitions"),
        (("--topics-matching", "o*", "--offsets", "0:1"), "exactly one topic, without partitions"),
        (("orders", "--key", "one", "--erasure-id", "x"), "should be a valid UUID"),
        (("orders", "--key", "secret", "--erasure-id", str(UUID(int=0))), "can't have the id of zeros only"),
        (("orders", "--key", "secret", "--standing", "0d"), "must be longer than 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(words: tuple[str, ...], reason: str) -> None:
    """Protects from an erasure of something else; the key is not repeated on the terminal."""
    client = ErasingClient()
    stdin = io.TextIOWrapper(io.BytesIO(b""))
    code, output, error = run(client, *words, "--yes", stdin=stdin)
    assert (code, output, client.asked) == (ExitCode.MISUSED, "", [])
    assert reason in error
    assert "secret" not in error


def test_without_a_terminal_it_asks_for_yes() -> None:
    """Protects a script's author, who forgot that there is no way back."""
    client = ErasingClient()
    code, _, error = run(client, "orders", "--key", "one")
    assert (code, client.asked) == (ExitCode.NOT_CONFIRMED, [])
    assert "give --yes, or try --dry-run first" in error

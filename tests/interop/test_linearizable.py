"""The log of a partition is linearizable, with deletes and erasures: Porcupine finds an order of all operations in
which one log gives all answers.

Several clients produce, delete, erase single records, ask for both ends and read, all of one partition, while the
broker is killed. A program that is not ours says whether the answers fit together.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.simulation.client import WireClient
from lowtide.simulation.load import CREATE_TOPICS_VERSION
from tests.chaos.serving import ServeProcess

from .franz_go import BUILD_TIMEOUT_S
from .recorded_log import RecordedLog

pytestmark = pytest.mark.interop
CLIENTS = 6
KILLS = 4
LIFE_S = 0.4
OPERATIONS_MIN = 300
SETTINGS = ("auto.create.topics.enable=false",)
SOURCE = Path(__file__).parent / "linearizable"


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    if shutil.which("go") is None:
        pytest.skip("go not installed")
    program = tmp_path_factory.mktemp("linearizable") / "linearizable"
    done = subprocess.run(
        ["go", "build", "-o", program, "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return program


def verdict(checker: Path, text: str, picture: Path) -> str:
    """Draws a history; if no order is found, it shows the longest partial one."""
    done = subprocess.run([checker, picture], input=text, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


async def work(log: RecordedLog, number: int, seed: int, address: list[int], stop: asyncio.Event) -> None:
    """One client, which connects again where the broker is gone."""
    chance, client = random.Random(f"{seed} {number}"), None
    while not stop.is_set():
        try:
            client = client or await WireClient.connect("127.0.0.1", address[0])
            await log.step(number, client, chance)
        except OSError:
            client = None
            await asyncio.sleep(0.01)
    if client is not None:
        client.close()


@pytest.mark.parametrize("seed", range(5))
async def test_a_killed_broker_answers_as_one_log(checker: Path, tmp_path: Path, seed: int) -> None:
    log, stop = RecordedLog("linear"), asyncio.Event()
    broker = ServeProcess(tmp_path / "log", *SETTINGS)
    await broker.__aenter__()
    address = [broker.port]
    client = await broker.connect()
    topic = CreatableTopic(name=log.topic, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CREATE_TOPICS_VERSION)
    client.close()
    tasks = [asyncio.create_task(work(log, number, seed, address, stop)) for number in range(CLIENTS)]
    try:
        for number in range(KILLS + 1):
            before = len(log.lines)
            async with asyncio.timeout(60):
                await asyncio.sleep(LIFE_S)
                while len(log.lines) < before + OPERATIONS_MIN / KILLS:
                    await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                    assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
            if number < KILLS:
                await broker.kill()
                broker = ServeProcess(tmp_path / "log", *SETTINGS)
                await broker.__aenter__()
                address[0] = broker.port
        stop.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await broker.kill()
    kinds = {line["kind"] for line in log.lines if line["answered"]}
    assert kinds == {"produce", "delete", "erase", "start", "end", "read"}
    assert verdict(checker, log.text(), tmp_path / "history.html") == "Ok", tmp_path / "history.html"


@pytest.mark.parametrize(
    ("kind", "argument", "result"),
    [("end", 0, 1), ("start", 0, 0), ("read", 0, 7), ("produce", 9, 1), ("delete", 2, 1)],
    ids=[
        "a record is lost",
        "a deleted record is back",
        "a deleted record is read",
        "an offset is given twice",
        "a delete is undone",
    ],
)
def test_the_checker_finds_what_no_log_answers(
    checker: Path, tmp_path: Path, kind: str, argument: int, result: int
) -> None:
    """Two records, a delete of the first one, and then an answer that can't be."""
    steps = [("produce", 7, 0), ("produce", 8, 1), ("delete", 1, 1), (kind, argument, result)]
    check_last_step(checker, tmp_path, steps)


@pytest.mark.parametrize(
    ("kind", "argument", "result"),
    [("read", 1, 8), ("read", 0, -3), ("produce", 9, 2), ("erase", 0, 3), ("end", 0, 2)],
    ids=[
        "an erased record is read",
        "another record is gone",
        "an erasure has no offset",
        "a record is not erased",
        "an erasure is lost",
    ],
)
def test_the_checker_finds_what_no_log_answers_after_an_erasure(
    checker: Path, tmp_path: Path, kind: str, argument: int, result: int
) -> None:
    """Two records, an erasure of the second one, and then an answer that can't be."""
    steps = [("produce", 7, 0), ("produce", 8, 1), ("erase", 1, 3), (kind, argument, result)]
    check_last_step(checker, tmp_path, steps)


def check_last_step(checker: Path, tmp_path: Path, steps: list[tuple[str, int, int]]) -> None:
    """Expects that only the last step can't be."""
    log = RecordedLog("linear")
    for number, (name, given, answer) in enumerate(steps):
        times = {"called": 10 * number, "returned": 10 * number + 5, "answered": True}
        log.lines.append({"client": 0, "kind": name, "argument": given, "result": answer} | times)
    assert verdict(checker, log.text(), tmp_path / "history.html") == "Illegal"
    log.lines.pop()
    assert verdict(checker, log.text(), tmp_path / "history.html") == "Ok"

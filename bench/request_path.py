"""The path of a request through a broker: its files, their lines, the calls, and how often the reader changes the file.

`make path` prints what a reader must read to understand a request: every file of the form that defines it, whole, with
the disk and the ports. The brokers are real ones over simulated ports, on virtual time, so the same request takes the
same path in each run. The trace counts calls of functions in the broker that serves the request, from its first byte to
the last one of its answer. A call of a simulated disk, clock or committer counts as a call of the real one. It does not
count the event loop with its sockets, generated codecs, checksums, and this client.

With LOWTIDE_PURE=1 there is no compiled code, and the short form of Fetch is off: this is the form that defines.
Otherwise Produce and Fetch take their short forms, and files in C count with the C files that they call.
"""

from __future__ import annotations

import asyncio
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from lowtide.broker.partitions.fetch.usual_fetch import UsualFetch
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

ROOT: Final = Path(__file__).resolve().parents[1]
DISK: Final = "runtime/filesystem/"
COMMITTER: Final = "runtime/committer.py"
STAND_INS: Final = {
    "SimulatedClock": "runtime/clock.py",
    "SimulatedCommitter": COMMITTER,
    "MemoryFile": f"{DISK}os_file.py",
    "MemoryFileSystem": f"{DISK}real.py",
}
"""Classes of simulated ports, and the files of the real ones."""

CHECKSUM: Final = "protocol/crc32c.py"
"""Its function is a leaf as a function of Python's own is: to understand a request, nobody reads how it computes."""

UNCOUNTED: Final = (
    "bench/",
    "simulation/",
    "runtime/simulated_",
    *(f"{DISK}{name}.py" for name in ("memory", "memory_file", "nodes", "planned_faults", "tree")),
    CHECKSUM,
    ".venv/",
)
"""The simulated environment of a broker, and the checksum. What calls the environment from outside is counted."""

BUILTINS: Final = ("SimulatedClock.monotonic_ns", "SimulatedClock.wall_ns")
"""Their real forms are functions of Python's own."""

READERS: Final = {"JointProduce.answer": "read_produce"}
"""C functions that the trace can't see, because a `functools.partial` calls them, by the function that follows them."""

NATIVE: Final = ROOT / "protocol" / "native"

TOPIC: Final = "t"
RECORDS: Final = build_batch([(1, None, b"x", ())])
LEADER: Final = "broker-1"
SETTINGS: Final = {"log.dirs": "/a", "auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}


class RequestPath(msgspec.Struct, frozen=True):
    """The path of one request. `calls` are (file, function), in order."""

    calls: tuple[tuple[str, str], ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the path, in the order of their first call."""
        return tuple(dict.fromkeys(file for file, _ in self.calls))

    @property
    def lines(self) -> int:
        """The lines of these files."""
        return sum(map(lines_of, self.files))

    @property
    def moves(self) -> int:
        """How often a call is in another file than the previous call."""
        return sum(before[0] != after[0] for before, after in zip(self.calls, self.calls[1:], strict=False))

    @property
    def moves_back(self) -> int:
        """The moves into a file that the path has left before."""
        return self.moves - (len(self.files) - 1)


def lines_of(file: str) -> int:
    """The lines of a file of the project."""
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


class Tracer:
    """Collects the calls of one host's code while it is on."""

    def __init__(self, loop: SimulatedLoop, host: str) -> None:
        self._loop = loop
        self._host = host
        self._places: dict[Any, tuple[str, str] | None] = {}
        self._calls: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def path(self) -> RequestPath:
        """The collected path."""
        return RequestPath(tuple(self._calls))

    def _on_event(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            place = self._place(frame.f_code)
            if place is not None and place[0].startswith(UNCOUNTED):
                caller = frame.f_back and self._place(frame.f_back.f_code)
                stand_in = STAND_INS.get(place[1].partition(".")[0])
                is_inside = caller is not None and caller[0].startswith(UNCOUNTED)
                is_port = (
                    stand_in is not None and place[1] not in BUILTINS and not (is_inside and stand_in != COMMITTER)
                )
                place = (stand_in, place[1]) if is_port and stand_in is not None else None
            places = [] if place is None else [*_c_places(READERS.get(place[1])), place]
        elif event == "c_call" and type(argument).__name__ == "builtin_function_or_method":
            places = _c_places(argument.__name__ if _is_compiled(argument) and argument is not crc32c else None)
        else:
            return
        if places and self._loop.current_host() == self._host:
            self._calls += places

    def _place(self, code: Any) -> tuple[str, str] | None:
        if code not in self._places:
            self._places[code] = _place(code)
        return self._places[code]


def _c_places(function: str | None) -> list[tuple[str, str]]:
    return [(file, f"{function}()") for file in c_files().get(function or "", ())]


def _is_compiled(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", type(owner).__module__).endswith("_lowtide_walk")


def _place(code: Any) -> tuple[str, str] | None:
    """Returns file and function of the broker's code; a comprehension counts with the function around it."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_file():
        return None
    try:
        file = str(path.resolve().relative_to(ROOT))
    except ValueError:
        return None
    return file, code.co_qualname


@functools.cache
def c_files() -> dict[str, list[str]]:
    """Returns the C files that a function of the compiled module runs in, its own first, by the function's name."""
    bodies: dict[tuple[str, str], str] = {}
    shared: dict[str, str] = {}
    begins: dict[str, tuple[str, str]] = {}
    for path in sorted(NATIVE.glob("*.c")):
        text, file = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for match in re.finditer(
            r"^([a-zA-Z][\w \*]*?)\b(\w+)\([^;{]*?\)\s*\{(.*?)^\}", text, re.MULTILINE | re.DOTALL
        ):
            bodies[file, match[2]] = match[3]
            if not match[1].startswith("static"):
                shared[match[2]] = file
        begins |= {name: (file, at) for name, at in re.findall(r'(?:METHOD|FUNCTION)\("(\w+)", (\w+)\)', text)}
    found = {}
    for name, (file, function) in begins.items():
        reached = dict[tuple[str, str], None]()
        left = [(file if (file, function) in bodies else shared[function], function)]
        while left:
            at = left.pop(0)
            if at in reached or at not in bodies:
                continue
            reached[at] = None
            left += [
                (at[0] if (at[0], called) in bodies else shared.get(called, ""), called)
                for called in re.findall(r"\b(\w+)\b", bodies[at])
            ]
        found[name] = list(dict.fromkeys(file for file, _ in reached))
    return found


class World:
    """Brokers that serve one topic, led by the first of them, and a client."""

    def __init__(self, loop: SimulatedLoop, brokers: int) -> None:
        shared, chronicle = SharedStore(loop, Random(1)), Chronicle(loop.time)
        self.loop = loop
        self.machines = [
            Machine(
                loop=loop,
                shared=shared,
                broker_id=broker_id,
                random=Random(broker_id),
                settings=SETTINGS | {"offsets.topic.replication.factor": str(brokers)},
                chronicle=chronicle,
                effects=Counter(),
            )
            for broker_id in range(1, brokers + 1)
        ]

    async def begin(self) -> WireClient:
        """Start all, create the topic, and wait until its replicas are in sync."""
        for machine in self.machines:
            machine.filesystem.block_bytes = OsFileSystem.block_bytes  # As on a disk: a small delete makes no hole.
            machine.start()
        while not all(machine.state is State.UP for machine in self.machines):  # noqa: ASYNC110 - of virtual time, here and below
            await asyncio.sleep(0.01)
        client = await WireClient.connect(*self.machines[0].address)
        assignment = CreatableReplicaAssignment(
            partition_index=0, broker_ids=[machine.broker_id for machine in self.machines]
        )
        topic = CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
        )
        answer = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert not answer.topics[0].error_code, answer
        for _ in range(20):
            await client.request(produce(-1), 9)
        return client


def produce(acks: int) -> ProduceRequest:
    """One record."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=RECORDS)])],
    )


def fetch() -> FetchRequest:
    """A fetch of existing records, without a session."""
    partition = FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )


def delete(offset: int) -> DeleteRecordsRequest:
    """A delete to an offset within the active segment."""
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[row])], timeout_ms=10_000)


def commit(offset: int) -> OffsetCommitRequest:
    """A commit of a group without members."""
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(
        group_id="g",
        member_id="",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
    )


async def _trace(world: World, requests: Callable[[int], Any], version: int) -> RequestPath:
    """The path of the third request: one-time initialization is done by then."""
    client = await world.begin()
    if version == COMMIT_VERSION:
        await _coordinator(client)
    for number in (1, 2):
        await client.request(requests(number), version)
        await asyncio.sleep(1)
    with Tracer(world.loop, LEADER) as tracer:
        await client.request(requests(3), version)
    return tracer.path


async def _coordinator(client: WireClient) -> None:
    """Wait until the group has a coordinator."""
    while (await client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    while (await client.request(commit(0), COMMIT_VERSION)).topics[0].partitions[0].error_code:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


COMMIT_VERSION: Final = 8
REQUESTS: Final[dict[str, tuple[int, Callable[[int], Any], int]]] = {
    "Produce, acks=1": (1, lambda _: produce(1), 9),
    "Produce, acks=all, three replicas": (3, lambda _: produce(-1), 9),
    "Fetch, records there": (1, lambda _: fetch(), 11),
    "OffsetCommit": (1, commit, COMMIT_VERSION),
    "DeleteRecords, one replica": (1, delete, 2),
    "DeleteRecords, three replicas": (3, delete, 2),
}
"""By name: the number of brokers, the request for a number, and the version."""


def request_path(name: str) -> RequestPath:
    """The path of one of `REQUESTS`."""
    brokers, requests, version = REQUESTS[name]

    def main(loop: SimulatedLoop) -> Coroutine[Any, Any, RequestPath]:
        return _trace(World(loop, brokers), requests, version)

    short_fetch = UsualFetch.answer
    if native.compiled is None:
        UsualFetch.answer = lambda *_: None  # type: ignore[method-assign]
    try:
        return run_simulation(main, 1)
    finally:
        UsualFetch.answer = short_fetch  # type: ignore[method-assign]


def main() -> int:
    """Print the paths of all requests: a table, then each file by file. With a word of a name, every call of it.

    `--json` prints only the calls, by request.
    """
    if sys.argv[1:] == ["--json"]:
        sys.stdout.buffer.write(msgspec.json.encode({name: request_path(name).calls for name in REQUESTS}))
        return 0
    wanted = " ".join(sys.argv[1:])
    paths = {name: request_path(name) for name in REQUESTS if wanted.lower() in name.lower()}
    if not paths:
        sys.stderr.write(f"no request is named like {wanted!r}: there are {', '.join(REQUESTS)}\n")
        return 2
    form = "defining form" if native.compiled is None else "with compiled code"
    print(f"{form:36} files  lines  calls  moves  of them back")
    for name, path in paths.items():
        print(
            f"{name:36} {len(path.files):5}  {path.lines:5}  {len(path.calls):5}  {path.moves:5}  {path.moves_back:12}"
        )
    for name, path in paths.items():
        print(f"\n{name}")
        calls = Counter(file for file, _ in path.calls)
        for file in path.files:
            print(f"  {calls[file]:4}  {lines_of(file):4}  {file}")
        if wanted:
            for file, function in path.calls:
                print(f"    {file}: {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

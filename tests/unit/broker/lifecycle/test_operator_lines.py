"""Log lines about a change of the cluster, a configuration, a full disk, a recovery: enough, and not too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from lowtide.admin import log_dirs
from lowtide.broker.config.described import HIDDEN, log_changes
from lowtide.broker.config.resources import ConfiguredResource
from lowtide.broker.lifecycle.disk_space import INTERVAL_MS, OVER_AFTER_MS, ROOM_MIN_BYTES, DiskSpace
from lowtide.broker.lifecycle.image_lines import PARTITIONS_NAMED, UNREADABLE_LINES_MAX, ImageLines
from lowtide.broker.lifecycle.start_lines import LOGS_NAMED, log_recoveries
from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.unreadable_keys import Unreadable
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.storage.directory.directory_reports import Recovery
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.errors import StorageError
from lowtide.storage.log.opening.known_log import LogRepairs

TOPIC_ID = b"T" * 16
COUNT = 10_000
CONTROLLER = 3


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **what: Any) -> None:
        self.told.append((event, what))

    warning = error = info

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def image_of(
    leader: int, epoch: int = 1, *, adding: tuple[int, ...] = (), brokers: dict[int, int] | None = None
) -> MetadataImage:
    one = PartitionImage((1, 2, *adding), (1, 2), (10, 20), leader, epoch, 7, 900, adding, ())
    topic = TopicImage("t", TOPIC_ID, tuple(msgspec.structs.replace(one) for _ in range(COUNT)), {}, 500)
    return MetadataImage(
        revision=1000,
        controller_id=CONTROLLER,
        controller_revision=5,
        brokers=cast("Any", {broker_id: SimpleNamespace(epoch=each) for broker_id, each in (brokers or {}).items()}),
        topics={"t": topic},
        topic_names={TOPIC_ID: "t"},
    )


def told(
    old: MetadataImage, new: MetadataImage, *, broker_id: int = CONTROLLER, brokers: tuple[int, ...] = ()
) -> Lines:
    log = Lines()
    lines = ImageLines(broker_id, log)
    lines.on_image(old, new, ImageDelta(topics_changed=tuple(new.topics.values()), brokers_changed=brokers))
    lines.on_tick()
    lines.on_tick()
    return log


def test_ten_thousand_elections_are_one_line_of_the_controller() -> None:
    log = told(image_of(1), image_of(2, 2))
    some = [{"partition": f"t-{number}", "leader_epoch": 2} for number in range(PARTITIONS_NAMED)]
    assert log.told == [
        ("leaders are elected", {"old_leader": 1, "new_leader": 2, "partitions": COUNT, "some_partitions": some})
    ]
    other = image_of(2, 2, brokers={CONTROLLER: 30})
    assert told(image_of(1), other, broker_id=1).told == []


def test_partitions_that_lose_their_leader_are_logged() -> None:
    """It names the brokers that can end it."""
    ((event, values),) = told(image_of(1), image_of(-1, 2)).told
    assert event == "partitions have no leader"
    assert values["some_partitions"][0] == {"partition": "t-0", "leader_epoch": 2, "waits_for": [1, 2]}


def test_a_change_without_another_leader_is_no_election() -> None:
    assert told(image_of(1), image_of(1)).told == []


def test_reassignments_begin_and_end_with_a_line_each() -> None:
    begun = told(image_of(1), image_of(1, adding=(4,)))
    assert begun.events == ["reassignment begins"]
    assert begun.told[0][1]["partitions"] == COUNT
    assert begun.told[0][1]["some_partitions"][0] == {
        "partition": "t-0",
        "replicas": [1, 2, 4],
        "adding": [4],
        "removing": [],
    }
    ended = told(image_of(1, adding=(4,)), image_of(1))
    assert ended.events == ["reassignment ends"]
    assert ended.told[0][1]["some_partitions"][0] == {"partition": "t-0", "replicas": [1, 2]}


def test_brokers_that_are_fenced_and_return_are_logged() -> None:
    old, new = image_of(1, brokers={1: 10, 2: 20}), image_of(1, brokers={2: 21, 4: 40})
    assert told(old, new, brokers=(1, 2, 4)).told == [
        ("broker is fenced", {"broker": 1, "broker_epoch": 10}),
        ("broker has registered again", {"broker": 2, "broker_epoch": 21}),
        ("broker is unfenced", {"broker": 4, "broker_epoch": 40}),
    ]


def test_what_happens_without_a_controller_is_logged_by_the_next_one() -> None:
    """The broker that is fenced may have been the controller."""
    before = msgspec.structs.replace(image_of(1, brokers={1: 10, 2: 20, CONTROLLER: 30}), controller_id=1)
    dead = msgspec.structs.replace(image_of(2, 2, brokers={2: 20, CONTROLLER: 30}), controller_id=1)
    after = msgspec.structs.replace(dead, controller_id=CONTROLLER)
    found = {}
    for broker_id in (2, CONTROLLER):
        log = Lines()
        lines = ImageLines(broker_id, log)
        lines.on_image(before, dead, ImageDelta(topics_changed=tuple(dead.topics.values()), brokers_changed=(1,)))
        lines.on_tick()
        assert log.told == []
        lines.on_image(dead, after, ImageDelta(controller_changed=True))
        lines.on_tick()
        found[broker_id] = log.events
    assert found == {2: [], CONTROLLER: ["this broker is the controller", "broker is fenced", "leaders are elected"]}


def test_a_changed_configuration_is_logged_with_key_old_and_new_value() -> None:
    log = Lines()
    log_changes(
        ConfiguredResource(ConfigResourceType.TOPIC, "t"),
        {"retention.ms": "1", "max.message.bytes": "7"},
        {"retention.ms": "2", "segment.bytes": "99"},
        log,
    )
    assert [(what["key"], what["old_value"], what["new_value"]) for _, what in log.told] == [
        ("max.message.bytes", "7", None),
        ("retention.ms", "1", "2"),
        ("segment.bytes", None, "99"),
    ]
    assert set(log.events) == {"configuration changed"}


@pytest.mark.parametrize("key", ["ssl.keystore.password", "no.such.key"])
def test_a_secret_is_never_logged(key: str) -> None:
    log = Lines()
    log_changes(
        ConfiguredResource(ConfigResourceType.BROKER, "1"),
        {key: "old secret"},
        {key: "new secret", "log.retention.ms": "5"},
        log,
    )
    assert [(what["key"], what["old_value"], what["new_value"]) for _, what in log.told] == sorted(
        [(key, HIDDEN, HIDDEN), ("log.retention.ms", None, "5")]
    )


class Directories:
    """The part of the log manager that the watch uses."""

    paths = ("/a", "/b")

    def __init__(self) -> None:
        self.free = {"/a": 1 << 40, "/b": 1 << 40}
        self.refused: set[str] = set()
        self.offline: dict[str, str] = {}
        self.without_room: set[str] = set()
        self.without_holes: list[str] = []

    def take_refused(self, path: str) -> bool:
        return path in self.refused

    def free_bytes(self, path: str) -> int:
        if path in self.offline:
            raise StorageError(path, "gone")
        return self.free[path]

    def logs_in(self, _path: str) -> list[Any]:
        sizes = {"small": 1, "large": 700, "middle": 30, "tiny": 0}
        return [
            SimpleNamespace(topic_partition=TopicPartition(name, number), size_bytes=size)
            for name, size in sizes.items()
            for number in (0, 1)
        ]


class Watched:
    """The watch on its own clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.directories, self.log = Directories(), Lines()
        self.now_ms = 0
        clock = cast("SimulatedClock", SimpleNamespace(monotonic_ms=lambda: self.now_ms))
        self._space = DiskSpace(cast("LogManager", self.directories), clock, loop, self.log)

    def tick(self, seconds: int = 1) -> list[str]:
        before = len(self.log.told)
        for _ in range(seconds):
            self.now_ms += 1000
            self._space.on_tick()
        return self.log.events[before:]


def watch(act: Any) -> None:
    async def main(loop: SimulatedLoop) -> None:
        act(Watched(loop))

    run_simulation(main, seed=1)


@pytest.mark.parametrize("by_quota", [True, False])
def test_a_disk_without_room_is_logged_at_once_each_minute_and_when_it_is_over(by_quota: bool) -> None:
    def act(world: Watched) -> None:
        assert world.tick(5) == []
        if by_quota:
            world.directories.refused.add("/a")
        else:
            world.directories.free["/a"] = ROOM_MIN_BYTES - 1
        assert world.tick() == ["log directory has no room"]
        what = world.log.told[0][1]
        assert (what["directory"], what["bytes_free"]) == ("/a", world.directories.free["/a"])
        assert what["largest_topics"] == {"large": 1400, "middle": 60, "small": 2}
        assert "lowtide records delete" in what["remedy"]
        assert world.directories.without_room == {"/a"}
        assert world.tick(INTERVAL_MS // 1000 - 1) == []
        assert world.tick() == ["log directory has no room"]
        world.directories.refused.clear()
        world.directories.free["/a"] = 1 << 40
        assert world.tick(OVER_AFTER_MS // 1000 - 1) == []
        assert world.tick() == ["log directory has room again"]
        assert world.log.told[-1][1]["lasted_ms"] == INTERVAL_MS
        assert world.directories.without_room == set()
        assert world.tick(100) == []

    watch(act)


def test_a_disk_that_has_room_now_and_then_is_not_logged_as_over_each_time() -> None:
    def act(world: Watched) -> None:
        for _ in range(6):
            world.directories.refused.add("/b")
            world.tick()
            world.directories.refused.clear()
            world.tick(5)
        assert world.log.events == ["log directory has no room"]

    watch(act)


def test_an_offline_directory_is_not_logged_as_full() -> None:
    def act(world: Watched) -> None:
        world.directories.free["/a"] = 0
        world.tick()
        world.directories.offline["/a"] = "it failed"
        assert world.tick(200) == []
        assert world.directories.without_room == set()

    watch(act)


def test_a_directory_whose_file_system_makes_no_holes_is_named_once() -> None:
    def act(world: Watched) -> None:
        world.directories.without_holes.append("/b")
        world.tick(100)
        assert [
            (what["directory"], event.startswith("the file system does not support holes"))
            for event, what in world.log.told
        ] == [("/b", True)]

    watch(act)


def test_the_command_line_and_the_broker_mean_the_same_by_no_room() -> None:
    assert log_dirs.ROOM_MIN_BYTES == ROOM_MIN_BYTES


def test_a_recovery_is_logged_with_what_it_cut() -> None:
    reports = {
        TopicPartition("t", number): LogRepairs(bytes_cut=number, reason="a torn batch")
        for number in range(LOGS_NAMED + 5)
    }
    directories = SimpleNamespace(recoveries=[Recovery("/a", False, 7, 9, 300)], load_reports=reports)
    manager = SimpleNamespace(directories=directories, logs={})
    log = Lines()
    log_recoveries(cast("LogManager", manager), 1234, log)
    assert log.told[0] == (
        "log directory was recovered after an unclean stop",
        {"directory": "/a", "logs": 7, "segments_checked": 9, "bytes_cut": 300, "duration_ms": 1234},
    )
    assert log.events[1:] == ["log was repaired"] * LOGS_NAMED + ["more logs were repaired"]
    assert log.told[2][1]["partition"] == "t-1"
    assert log.told[2][1]["bytes_cut"] == 1
    assert log.told[-1][1]["logs"] == 5


def test_each_repair_that_is_logged_says_what_was_repaired() -> None:
    """A line without it reads like a repair of nothing."""
    repairs = [
        LogRepairs(bytes_cut=1, reason="a torn batch"),
        LogRepairs(segments_dropped=1),
        LogRepairs(indexes_rebuilt=1),
        LogRepairs(epochs_rebuilt=True),
        LogRepairs(restarted_at_log_start=True),
    ]
    reports = {TopicPartition("t", number): report for number, report in enumerate(repairs)}
    directories = SimpleNamespace(recoveries=[], load_reports=reports)
    log = Lines()
    log_recoveries(cast("LogManager", SimpleNamespace(directories=directories, logs={})), 1, log)
    repaired = [{key: value for key, value in what.items() if key != "partition" and value} for _, what in log.told]
    assert repaired == [
        {"bytes_cut": 1, "reason": "a torn batch"},
        {"segments_dropped": 1},
        {"indexes_rebuilt": 1},
        {"leader_epochs_rebuilt": True},
        {"begins_at_its_log_start": True},
    ]


SHARED = "all replicas of a partition are on this machine: they survive a failed process, not a failed machine"


@pytest.mark.parametrize(
    ("machine", "broker_id", "expected"),
    [((1, 2, 3), CONTROLLER, 1), ((2, 3), CONTROLLER, 0), ((), CONTROLLER, 0), ((1, 2), 1, 0)],
)
def test_replicas_that_share_a_machine_are_named_once(machine: tuple[int, ...], broker_id: int, expected: int) -> None:
    """By the controller, where a supervisor runs several brokers; not where one replica is elsewhere."""
    log, new = Lines(), image_of(1)
    lines = ImageLines(broker_id, log, machine)
    for _ in range(2):
        lines.on_image(MetadataImage(), new, ImageDelta(topics_created=tuple(new.topics.values())))
    assert log.events.count(SHARED) == expected


def test_a_key_that_cannot_be_read_is_named_once_and_many_are_counted() -> None:
    log = Lines()
    lines = ImageLines(CONTROLLER, log)
    whole, broken = MetadataImage(1), MetadataImage(2, unreadable={b"topics/t": Unreadable(2, "not JSON")})
    worse = MetadataImage(4, unreadable={b"topics/t": Unreadable(4, "not JSON", keeps=True)})
    many = MetadataImage(6, unreadable={b"parts/%d" % number: Unreadable(6, "is nothing") for number in range(1000)})
    for old, new in (
        (whole, broken),
        (broken, msgspec.structs.replace(broken, revision=3)),
        (broken, worse),
        (worse, whole),
    ):
        lines.on_image(old, new, ImageDelta())
    unread = "metadata key is unreadable, dependent operations wait until it is repaired"
    assert log.events == [unread, unread, "metadata keys are readable again or deleted"]
    assert [what.get("key") for _, what in log.told] == ["topics/t", "topics/t", None]
    assert (log.told[0][1]["reason"], log.told[0][1]["revision"]) == ("not JSON", 2)
    log.told.clear()
    lines.on_image(whole, many, ImageDelta())
    assert log.events == [unread] * UNREADABLE_LINES_MAX + ["more metadata keys are unreadable"]
    assert log.told[-1][1] == {"keys": 1000 - UNREADABLE_LINES_MAX}

"""Who is in sync, and who is eligible as a leader, once the metadata are brought forward: chosen by what logs have (`recovery`).

The rules are those of an election (`MetadataImage.has_all`): candidates are the members of the in-sync set and the eligible leaders, but
for those that are marked as stale. Unlike an election it sees their logs, so the furthest of them count.

Guards: who is chosen has every record and every delete that is known to have been committed, or the choice says what would be lost.
Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.storage.directory.directory_survey import SurveyedReplica


class GivenLog(NamedTuple):
    """A replica's log.

    `may_lack_records`: its machine stopped while its directory was in use, and what was not synced may be gone.
    """

    replica: SurveyedReplica
    may_lack_records: bool

    @property
    def end(self) -> tuple[LeaderEpoch, Offset]:
        """How far it goes: of two logs the greater one has all that is in the other, and that may be committed."""
        return self.replica.leader_epoch, self.replica.log_end_offset


class Choice(NamedTuple):
    """Who is in sync and who is eligible, and from where to where the log goes that counts: None without a sound one."""

    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    start: Offset | None = None
    end: Offset | None = None
    loss: str = ""


def choose_members(image: MetadataImage, topic: TopicImage, number: int, logs: Mapping[BrokerId, GivenLog]) -> Choice:
    """Choose among the replicas of a partition that had all that was committed, by what their logs have now."""
    state = topic.partitions[number]
    epochs = state.members
    members = {
        member: epochs[member]
        for member in (*state.isr, *state.elr)
        if not image.is_stale(member, topic.topic_id, number, epochs[member])
    }
    given = {member: logs[member] for member in members if member in logs}
    if not given:
        return Choice(state.isr, state.elr)
    best = max(log.end for log in given.values())
    furthest = [member for member, log in given.items() if log.end == best]
    # A delete that was acknowledged is on all of them; what only some have was one of a leader alone.
    start = max(given[member].replica.log_start_offset for member in furthest)
    isr = tuple(member for member in furthest if given[member].replica.log_start_offset == start)
    whole = [
        member
        for member, epoch in members.items()
        if image.has_all(member, topic.topic_id, number, epoch)
        and not (member in given and given[member].may_lack_records)
    ]
    committed = max(log.replica.high_watermark for log in given.values())
    name = f"{topic.name}-{number}"
    if committed > best[1]:
        loss = f"{name}: offsets {best[1]} to {committed - 1} were committed, and no log that is given has them"
    elif whole and not any(member in given for member in whole):
        loss = f"{name}: {_lacking(whole, isr, best[1])}"
    else:
        loss = ""
    # What a log has whose machine has been started again since is on the disk; then no other one needs to be eligible.
    needs_others = all(member in whole for member in isr)
    elr = (
        member
        for member in state.elr
        if needs_others
        and member in whole
        and member in given
        and member not in isr
        and given[member].end[1] >= committed
    )
    return Choice(isr, tuple(elr), start, best[1], loss)


def _lacking(whole: Sequence[BrokerId], isr: Sequence[BrokerId], end: Offset) -> str:
    """What would be lost where those that had all that was committed have no sound log, and the others may lack records."""
    return (
        f"broker {_ids(whole)} had all that was committed, and no sound log of it is given; broker {_ids(isr)} may lack records, because "
        f"its machine stopped while the log directory was in use. Its log ends at offset {end}; what was committed from there on is lost"
    )


def _ids(brokers: Sequence[BrokerId]) -> str:
    return ", ".join(map(str, brokers))


def without_logs(state: PartitionImage) -> str:
    """What becomes of a partition without a sound log that had everything.

    The only replica is led as it is (rule DR8).
    """
    if len(state.replicas) == 1:
        leader = f"broker {state.replicas[0]}"
        return f"no sound log of its only replica is given; {leader} leads it with what it has when it starts, perhaps nothing"
    eligible = f" and its eligible leaders ({_ids(state.elr)})" if state.elr else ""
    return f"of its in-sync replicas ({_ids(state.isr)}){eligible} no sound log is given; it stays without a leader"


def still_stale(
    image: MetadataImage, kept: Sequence[tuple[TopicId, int, PartitionImage]]
) -> Mapping[BrokerId, Mapping[TopicId, frozenset[int]]]:
    """Of the partitions whose members stay as they are, those that must not be elected cleanly (rule DR8).

    They are marked as stale, or may lack records while another one has them all. All are members since `LONG_AGO` from
    now on, so what an election found by their registrations is written as a mark.
    """
    stale: dict[BrokerId, dict[TopicId, frozenset[int]]] = {}
    for topic_id, number, state in kept:
        another_has_all = any(image.has_all(member, topic_id, number, epoch) for member, epoch in state.members.items())
        for member, epoch in state.members.items():
            lacks = another_has_all and image.may_lack_records(member, epoch)
            if lacks or image.is_stale(member, topic_id, number, epoch):
                replicas = stale.setdefault(member, {})
                replicas[topic_id] = replicas.get(topic_id, frozenset()) | {number}
    return stale

"""Chooses the ISR and the eligible leaders of recovered partitions, by the logs that exist (`recovery`).

The rules are those of an election (`MetadataImage.has_all`): candidates are ISR members and eligible leaders, without
stale ones. Unlike an election it sees their logs, and takes the longest. A log that may lack records is taken only if
it reaches as far as one that lacks none, or else as what is known to be committed, whatever its latest leader epoch.

Guards: the chosen replicas have every record and every delete that is known to be committed, or the result says what
would be lost. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.storage.directory.directory_survey import SurveyedReplica


class ReplicaLog(NamedTuple):
    """A replica's log.

    `may_lack_records`: its machine crashed while its directory was in use, and unsynced data may be gone.
    """

    replica: SurveyedReplica
    may_lack_records: bool

    @property
    def end(self) -> tuple[LeaderEpoch, Offset]:
        """Returns leader epoch and log end.

        If neither of two logs lacks records, the one with the greater pair has all committed records of the other.
        """
        return self.replica.leader_epoch, self.replica.log_end_offset


class Choice(NamedTuple):
    """The ISR and the eligible leaders, and the range of the log; None without a sound log."""

    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    start: Offset | None = None
    end: Offset | None = None
    loss: str = ""


def choose_members(image: MetadataImage, topic: TopicImage, number: int, logs: Mapping[BrokerId, ReplicaLog]) -> Choice:
    """Chooses among the replicas that had everything committed, by their logs."""
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
    whole = [
        member
        for member, epoch in members.items()
        if image.has_all(member, topic.topic_id, number, epoch)
        and not (member in given and given[member].may_lack_records)
    ]
    committed = max(log.replica.high_watermark for log in given.values())
    complete = [log.end for member, log in given.items() if member in whole]
    least = max(complete)[1] if complete else min(committed, max(log.end[1] for log in given.values()))
    best = max([*complete, *(log.end for log in given.values() if log.end[1] >= least)])
    furthest = [member for member, log in given.items() if log.end == best]
    # All replicas have an acknowledged delete; one that only some have was not acknowledged.
    start = max(given[member].replica.log_start_offset for member in furthest)
    isr = tuple(member for member in furthest if given[member].replica.log_start_offset == start)
    name = f"{topic.name}-{number}"
    if committed > best[1]:
        loss = f"{name}: offsets {best[1]} to {committed - 1} were committed, and no log that is given has them"
    elif whole and not any(member in given for member in whole):
        loss = f"{name}: {_lacking(whole, isr, best[1])}"
    else:
        loss = ""
    # A log whose machine has restarted since is on the disk; then no other replica needs to be eligible.
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
    """Returns the warning for a partition whose complete replicas have no sound log: the others may lack records."""
    return (
        f"broker {_ids(whole)} had all that was committed, and no sound log of it is given; broker {_ids(isr)} may "
        "lack records, because its machine stopped while the log directory was in use. Its log ends at offset "
        f"{end}; what was committed from there on is lost"
    )


def _ids(brokers: Sequence[BrokerId]) -> str:
    return ", ".join(map(str, brokers))


def without_logs(state: PartitionImage) -> str:
    """Returns what happens to a partition without a sound log. A single replica leads with what it has (rule DR8)."""
    if len(state.replicas) == 1:
        leader = f"broker {state.replicas[0]}"
        return (
            f"no sound log of its only replica is given; {leader} leads it with what it has when it starts, perhaps "
            "nothing"
        )
    eligible = f" and its eligible leaders ({_ids(state.elr)})" if state.elr else ""
    return f"of its in-sync replicas ({_ids(state.isr)}){eligible} no sound log is given; it stays without a leader"


def still_stale(
    image: MetadataImage, kept: Sequence[tuple[TopicId, int, PartitionImage]]
) -> Mapping[BrokerId, Mapping[TopicId, frozenset[int]]]:
    """Returns the replicas of unchanged partitions that must not be elected cleanly (rule DR8).

    They are stale, or may lack records while another has them all. In the recovered store all are members since
    `LONG_AGO`, so their registrations prove nothing, and marks replace them.
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

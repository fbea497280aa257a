from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowtide.broker.coordinator.streams.tasks import TaskId, Tasks
from lowtide.broker.coordinator.streams.topology import ConfiguredTopology


@dataclass(frozen=True)
class MemberSpec:
    instance_id: str | None
    rack_id: str | None
    process_id: str
    client_tags: Mapping[str, str]
    current: Tasks
    task_offsets: Mapping[TaskId, int]
    task_end_offsets: Mapping[TaskId, int]


@dataclass(frozen=True)
class GroupSpec:
    members: Mapping[str, MemberSpec]
    num_standby_replicas: int = 0
    num_warmup_replicas: int = 0
    rack_aware_tags: tuple[str, ...] = ()


def assign(spec: GroupSpec, topology: ConfiguredTopology) -> dict[str, Tasks]:
    names = sorted(spec.members)
    active: dict[str, dict[str, set[int]]] = {name: {} for name in names}
    assert topology.subtopologies is not None
    tasks = [(s, p) for s, c in sorted(topology.subtopologies.items()) for p in range(c.number_of_tasks)]
    for i, (s, p) in enumerate(tasks):
        active[names[i % len(names)]].setdefault(s, set()).add(p)
    return {n: Tasks(active={s: frozenset(v) for s, v in a.items()}) for n, a in active.items()}

"""The modules to mutate, and the tests that should find their mutants. Values only.

A group is a set of modules with their own tests. Mutants that survive these are run with the wider tests, which use the
modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Group:
    """`modules` and tests are paths of the tree: files, or folders with all that is in them."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    wider: tuple[str, ...]

    def files(self) -> list[str]:
        """Returns its modules, the first-named first."""
        found: dict[str, None] = {}
        for module in self.modules:
            path = ROOT / module
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                if file.name != "__init__.py":
                    found[str(file.relative_to(ROOT))] = None
        return list(found)


LEADING = tuple(
    f"replication/{name}.py"
    for name in (
        "leadership",
        "in_sync_replicas",
        "partition",
        "follower",
        "follower_phase",
        "follower_reads",
        "alter_partition",
        "elections",
    )
)
"""First what decides over deletes, ISR and leaders."""

LEDGER_TESTS = (
    "tests/unit/broker/ledger",
    *(
        f"tests/unit/broker/partitions/test_{name}.py"
        for name in (
            "erasure_ledger",
            "standing_erasures",
            "lost_erasures",
            "replayed_erasures",
            "holds",
            "find_records",
        )
    ),
)
RECEIPT_TESTS = (
    "tests/unit/admin/test_receipts.py",
    "tests/unit/cli/test_ledger_reading.py",
    "tests/unit/cli/test_erasures.py",
)
COORDINATORS = "tests/unit/broker/coordinator"
HANDLERS = "tests/unit/broker/handlers"

GROUPS = (
    Group("log starts", ("storage/log_start",), ("tests/unit/storage/log_start",), ("tests/unit/storage/directory",)),
    Group(
        "purgatory",
        ("replication/purgatory.py",),
        ("tests/unit/replication/test_purgatory.py",),
        ("tests/unit/broker/partitions",),
    ),
    Group("erasures", ("storage/erasures",), ("tests/unit/storage/erasures",), ("tests/unit/broker/partitions",)),
    Group("receipts", ("admin/receipts",), RECEIPT_TESTS, ("tests/unit/cli",)),
    Group("ledger", ("broker/ledger",), LEDGER_TESTS, ("tests/unit/broker/partitions",)),
    Group("replication", (*LEADING, "replication"), ("tests/unit/replication",), ("tests/unit/broker/partitions",)),
    *(
        Group(
            f"{name} coordinator",
            (f"broker/coordinator/{name}",),
            (f"{COORDINATORS}/{name}",),
            (COORDINATORS, HANDLERS),
        )
        for name in ("transactions", "groups", "classic", "modern", "share_state", "runtime")
    ),
)

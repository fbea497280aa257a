"""The product is built upward: parts of bounded size, each made from parts that exist, none set into another after its
birth.

The lists have what isn't so yet, with today's figures. They only shrink: a figure falls with its class, an entry goes
with its last case.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from .statements import nodes, statements

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "admin",
    "broker",
    "cli",
    "console",
    "metadata",
    "pipeline",
    "protocol",
    "replication",
    "runtime",
    "simulation",
    "storage",
    "testing",
    "verification",
)
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

ATTRIBUTES_MAX = 20
METHODS_MAX = 30

LARGE = {
    "broker/coordinator/classic/classic_group.py:ClassicGroup": (20, 30),
    "runtime/filesystem/memory.py:MemoryFileSystem": (18, 29),
    "runtime/simulated_transport.py:SimulatedTransport": (19, 30),
    "broker/network/connection/connection_host.py:ConnectionHost": (23, 10),
    "simulation/machines.py:Machine": (25, 27),
    "simulation/cluster_invariants.py:ClusterInvariants": (23, 27),
}
"""Classes with more attributes or methods, with how many of each they have today."""

LEVELS_MAX = 2
BASED_METHODS_MAX = 30
RECORD_METHODS_MAX = 3
"""A class with so few methods is a record: how many levels it has matters little, as for errors."""

TOWERS: dict[str, tuple[int, int]] = {
    "simulation/broker_simulation.py:CheckedLoop": (3, 26),
    "simulation/cluster_simulation.py:ClusterLoop": (3, 26),
    "simulation/cluster_simulation.py:ClusterSimulation": (2, 36),
    "simulation/consumer_group_load.py:ClassicConsumer": (5, 29),
    "simulation/consumer_group_load.py:ConsumerGroupLoad": (3, 8),
    "simulation/consumer_group_load.py:Grower": (3, 12),
    "simulation/consumer_member.py:ConsumerMember": (5, 28),
    "simulation/group_load.py:AnyMember": (3, 14),
    "simulation/group_load.py:Committer": (3, 12),
    "simulation/group_load.py:OffsetFetcher": (3, 12),
    "simulation/group_member.py:GroupMember": (4, 31),
    "simulation/keyed_load.py:KeyedReader": (3, 9),
    "simulation/owning_member.py:OwningMember": (4, 20),
    "simulation/partition_actors.py:IdempotentProducer": (3, 11),
    "simulation/pipelined_producer.py:PipelinedProducer": (4, 14),
    "simulation/transformer.py:Transformer": (3, 20),
}
"""Classes above these limits, with their levels of ours and their methods, those of bases included."""

OPEN = frozenset({"admin/client.py:AdminClient"})
"""Classes that have a method for each thing that their users may ask for: they grow with these."""

WIRED_ROOMS = ("broker/lifecycle", "broker/partitions", "storage/directory")
"""Where nothing assigns to an attribute of another object, but for values."""

VALUES = {"following", "known", "leaving", "log", "opened", "request", "session", "shortage", "target", "traffic"}
"""Values that one function or object fills in for its owner: answers, rows, the state of a log."""

WIRED: dict[str, set[str]] = {}
"""By module, parts that are set into other parts after their birth."""


class Size(NamedTuple):
    """Of a class: attributes that are assigned through `self` or declared, and methods with their properties."""

    attributes: int
    methods: int

    @property
    def is_large(self) -> bool:
        return self.attributes > ATTRIBUTES_MAX or self.methods > METHODS_MAX


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def stored(tree: ast.AST) -> list[ast.Attribute]:
    """Attributes that are assigned to, also in unpacked and augmented assignments."""
    return [node for node in nodes(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]


def size_of(tree: ast.ClassDef) -> Size:
    """A class without `__init__` is a record, whose fields aren't counted."""
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not any(method.name == "__init__" for method in methods):
        return Size(0, len(methods))
    declared = {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return Size(len(declared | {node.attr for node in stored(tree) if is_self(node.value)}), len(methods))


def is_value(tree: ast.ClassDef) -> bool:
    """A record without behaviour of its own, as a configuration or a request: it may have any number of fields."""
    return size_of(tree).methods <= 3 and not any(
        isinstance(node, ast.FunctionDef) and node.name == "__init__" for node in tree.body
    )


class Form(NamedTuple):
    """A class as it is declared: the names of its bases and of its methods."""

    bases: tuple[str, ...]
    methods: frozenset[str]
    is_protocol: bool


def form_of(node: ast.ClassDef) -> Form:
    named = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    bases = tuple(ast.unparse(base).rpartition(".")[2] for base in named)
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return Form(bases, frozenset(methods), "Protocol" in bases)


class Classes(NamedTuple):
    """What the rules ask about the classes of the product. No tree is kept."""

    sizes: dict[str, Size]
    """All classes that have behaviour, by `module.py:Class`."""
    forms: dict[str, dict[str, Form]]
    """All classes at the top of modules, by name and module: some names stand more than once."""


@functools.cache
def classes() -> Classes:
    """Parses each module once."""
    found = Classes({}, {})
    for path in SOURCES:
        tree, module = ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
        for node in statements(tree):
            if isinstance(node, ast.ClassDef) and not is_value(node):
                found.sizes[f"{module}:{node.name}"] = size_of(node)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.forms.setdefault(node.name, {})[module] = form_of(node)
    return found


def sizes() -> dict[str, Size]:
    return classes().sizes


def forms() -> dict[str, dict[str, Form]]:
    return classes().forms


def tower(name: str, module: str) -> tuple[int, set[str]]:
    """Returns the number of levels of ours, the class included, and the names of all methods. Protocols don't count."""
    form = forms()[name][module]
    levels, methods = 0, set(form.methods)
    for base in form.bases:
        of_name = forms().get(base, {})
        if not of_name or base == name:
            continue
        below = module if module in of_name else next(iter(of_name))
        if of_name[below].is_protocol:
            continue
        height, inherited = tower(base, below)
        levels, methods = max(levels, height), methods | inherited
    return levels + 1, methods


@functools.cache
def towers() -> dict[str, tuple[int, int]]:
    """The levels and methods of each class that has more than it may."""
    found = {}
    for name, modules in forms().items():
        for module in modules:
            levels, methods = tower(name, module)
            key = f"{module}:{name}"
            is_record = len(methods) <= RECORD_METHODS_MAX or name.endswith("Error")
            if key not in OPEN and not is_record and (levels > LEVELS_MAX or len(methods) > BASED_METHODS_MAX):
                found[key] = (levels, len(methods))
    return found


def test_no_class_is_a_tower() -> None:
    """A class has at most two levels of ours and 30 methods, those of its bases counted; the list only shrinks."""
    assert towers() == TOWERS


def wired_in(text: str) -> set[str]:
    """What a module assigns to attributes of other objects, values aside."""
    assigned = {ast.unparse(node) for node in stored(ast.parse(text)) if not is_self(node.value)}
    return {target for target in assigned if target.rsplit(".", 2)[-2].lstrip("_") not in VALUES}


@functools.cache
def wired() -> dict[str, set[str]]:
    found = {}
    for room in WIRED_ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            targets = wired_in(path.read_text(encoding="utf-8"))
            if targets:
                found[str(path.relative_to(ROOT))] = targets
    return found


def test_classes_are_small_enough_to_be_known() -> None:
    """No class has more than 20 attributes or 26 methods, but those of the list, which don't grow."""
    for name, size in sizes().items():
        most = LARGE.get(name, (ATTRIBUTES_MAX, METHODS_MAX))
        assert size.attributes <= max(most[0], ATTRIBUTES_MAX), f"{name} has {size.attributes} attributes"
        assert size.methods <= max(most[1], METHODS_MAX), f"{name} has {size.methods} methods"


def test_nothing_is_set_into_a_part_after_its_birth() -> None:
    for module, targets in wired().items():
        assert targets <= WIRED.get(module, set()), module


def test_the_lists_only_shrink() -> None:
    """In the rooms that are built upward, figures are those of today.

    Elsewhere an entry goes with its class, or when that is small.
    """
    here = {
        name: tuple(size) for name, size in sizes().items() if name.rpartition("/")[0] in WIRED_ROOMS and size.is_large
    }
    assert {name: size for name, size in LARGE.items() if name.rpartition("/")[0] in WIRED_ROOMS} == here
    assert wired() == WIRED


def test_the_rules_see_the_code() -> None:
    """Were the folders moved, every rule above would hold for nothing."""
    assert len(sizes()) > 300
    assert sizes()["broker/partitions/replica_manager.py:ReplicaManager"].methods > 10
    assert all(list((ROOT / room).glob("*.py")) for room in WIRED_ROOMS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self.part.owner = self", {"self.part.owner"}),
        ("part.owner, self.x = self, 1", {"part.owner"}),
        ("self.count += 1", set()),
        ("log.offline = True", set()),
        ("self._log.offline = True", set()),
        ("replicas.log = log", {"replicas.log"}),
    ],
)
def test_what_counts_as_setting(line: str, found: set[str]) -> None:
    assert wired_in(line) == found

"""The mutants of a module: what is changed and what isn't, and that each is a change of one function."""

from __future__ import annotations

from tests.mutants.operators import Mutant, mutants

SOURCE = '''
LIMIT = 3


class Box:
    """A text."""

    size: int = 0

    @property
    def room(self) -> int:
        return LIMIT - self.size

    def put(self, count: int = 1) -> bool:
        """A text."""
        assert count > 0, "not nothing"
        self._log.info("puts", count=count + 1)
        if count <= self.room and not self.closed:
            self.size += count
            self.tell(f"{count + 1}")
            return True
        return False


def first(values):
    for value in values:
        if value is None:
            continue
        return min(value, 7)
    raise ValueError("none" + "!")
'''


def keys(qualified: str) -> list[str]:
    return [mutant.key.partition(": ")[2] for mutant in mutants(SOURCE) if mutant.function[0] == qualified]


def test_conditions_statements_and_numbers_are_mutated():
    assert keys("Box.put") == [
        "count <= self.room and (not self.closed) -> not self.closed",
        "count <= self.room and (not self.closed) -> count <= self.room",
        "count <= self.room -> count < self.room",
        "not self.closed -> self.closed",
        "self.size += count -> pass",
        "self.tell(f'{count + 1}') -> pass",
        "True -> False",
        "False -> True",
    ]
    assert keys("Box.room") == ["LIMIT - self.size -> LIMIT + self.size"]


def test_texts_assertions_log_lines_limits_and_defaults_are_not():
    every = " ".join(mutant.key for mutant in mutants(SOURCE))
    assert "assert" not in every
    assert "_log" not in every
    assert "LIMIT = " not in every
    assert keys("first") == [
        "value is None -> value is not None",
        "continue -> break",
        "min(value, 7) -> max(value, 7)",
        "7 -> 8",
        "raise ValueError('none' + '!') -> pass",
    ]


def of(key: str) -> Mutant:
    return next(mutant for mutant in mutants(SOURCE) if mutant.key == key)


def test_a_mutant_is_the_code_of_its_function_alone():
    names: dict = {}
    exec(compile(SOURCE, "module.py", "exec"), names)
    first = names["first"]
    assert first([None, 9]) == 7
    mutant = of("first: min(value, 7) -> max(value, 7)")
    first.__code__ = mutant.code("module.py")
    assert first([None, 9]) == 9
    assert first.__code__.co_filename == "module.py"
    room = names["Box"].room.fget
    room.__code__ = of("Box.room: LIMIT - self.size -> LIMIT + self.size").code("module.py")
    assert names["Box"]().room == 3


def test_a_mutant_keeps_its_name_when_lines_are_added_elsewhere_and_equal_ones_are_numbered():
    moved = "\n\n" + SOURCE.replace("LIMIT = 3", "LIMIT = 3\nOTHER = 4")
    assert [mutant.key for mutant in mutants(moved)] == [mutant.key for mutant in mutants(SOURCE)]
    assert [mutant.key for mutant in mutants("def f(a):\n    return a[0] + a[0]\n")] == [
        "f: a[0] + a[0] -> a[0] - a[0]",
        "f: 0 -> 1",
        "f: 0 -> 1 (2)",
    ]


def test_a_test_sees_a_mutant_by_the_lines_of_what_is_changed():
    mutant = of("first: value is None -> value is not None")
    assert [SOURCE.splitlines()[line - 1].strip() for line in mutant.lines] == ["if value is None:"]

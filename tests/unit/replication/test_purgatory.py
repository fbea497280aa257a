"""The purgatory: thresholds, deadlines, exactly once."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from lowtide.replication.purgatory import DEADLINE_BUCKET_MS, DelayedOperation, DelayedOperationPurgatory


def make(maximum_per_key: int = 100) -> DelayedOperationPurgatory[str]:
    return DelayedOperationPurgatory(maximum_per_key=maximum_per_key)


def test_threshold_is_inclusive() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 5)], deadline_ms=1000)
    assert not purgatory.advance("a", 4)
    assert purgatory.advance("a", 5)
    assert purgatory.take_ready() == [operation]
    assert len(purgatory) == 0


def test_operation_with_two_keys_is_ready_once() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1), ("b", 1)], deadline_ms=1000)
    purgatory.advance("a", 1)
    purgatory.advance("b", 1)
    assert purgatory.take_ready() == [operation]
    assert "a" not in purgatory.watched_keys
    assert "b" not in purgatory.watched_keys


def test_other_keys_do_not_wake() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1)], deadline_ms=1000)
    assert not purgatory.advance("b", 100)
    assert not purgatory.release("b")
    assert len(purgatory) == 1


def test_release_makes_ready_in_order_of_arrival() -> None:
    purgatory = make()
    operations = [DelayedOperation() for _ in range(3)]
    for threshold, operation in zip((9, 1, 5), operations, strict=True):
        purgatory.watch(operation, [("a", threshold)], deadline_ms=1000)
    purgatory.release("a")
    assert purgatory.take_ready() == operations


def test_all_are_released_also_one_that_waits_only_for_its_deadline() -> None:
    """The event that it waited for may be impossible now, so it has no key to watch."""
    purgatory, keyed, keyless = make(), DelayedOperation(), DelayedOperation()
    purgatory.watch(keyless, [], deadline_ms=1000)
    purgatory.watch(keyed, [("a", 1)], deadline_ms=2000)
    assert purgatory.release_all()
    assert set(purgatory.take_ready()) == {keyed, keyless}
    assert len(purgatory) == 0
    assert purgatory.next_deadline_ms() is None


def test_deadline_is_never_early_and_at_most_a_bucket_late() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1)], deadline_ms=1003)
    assert not purgatory.expire(1002)
    due_ms = purgatory.next_deadline_ms()
    assert due_ms is not None
    assert 1003 <= due_ms < 1003 + DEADLINE_BUCKET_MS
    assert purgatory.expire(due_ms)
    assert operation.expired
    assert purgatory.take_ready() == [operation]
    assert purgatory.next_deadline_ms() is None


def test_removed_operation_is_never_returned() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1)], deadline_ms=10)
    purgatory.remove(operation)
    purgatory.advance("a", 1)
    purgatory.expire(1000)
    assert purgatory.take_ready() == []


def test_removed_while_ready_is_not_handed_out() -> None:
    """A client may disconnect between the event and the response."""
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1)], deadline_ms=10)
    purgatory.advance("a", 1)
    purgatory.remove(operation)
    assert purgatory.take_ready() == []


def test_operation_may_be_watched_again() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 1), ("b", 1)], deadline_ms=1000)
    purgatory.advance("a", 1)
    purgatory.take_ready()
    purgatory.watch(operation, [("a", 2)], deadline_ms=1000)
    assert not purgatory.advance("b", 5), "the watch of its earlier wait has ended"
    assert purgatory.advance("a", 2)


def test_room_is_bounded_per_key() -> None:
    purgatory = make(maximum_per_key=2)
    for _ in range(2):
        assert purgatory.has_room("a")
        purgatory.watch(DelayedOperation(), [("a", 1)], deadline_ms=1000)
    assert not purgatory.has_room("a")
    assert purgatory.has_room("b")


def test_dead_watches_do_not_accumulate() -> None:
    """Long polls that time out repeatedly on an idle partition, beside one that stays, must not grow its heap."""
    purgatory, stays = make(), DelayedOperation()
    purgatory.watch(stays, [("a", 1)], deadline_ms=10**9)
    for _ in range(10_000):
        operation = DelayedOperation()
        purgatory.watch(operation, [("a", 1)], deadline_ms=10)
        purgatory.remove(operation)
    assert len(purgatory._watchers["a"].heap) < 200


def test_a_watch_of_an_earlier_wait_does_not_wake_a_later_one() -> None:
    """It lies in the heap of its key as long as others watch that."""
    purgatory, operation, other = make(), DelayedOperation(), DelayedOperation()
    purgatory.watch(other, [("a", 50)], deadline_ms=1000)
    purgatory.watch(operation, [("a", 5), ("b", 1)], deadline_ms=1000)
    purgatory.advance("b", 1)
    purgatory.take_ready()
    purgatory.watch(operation, [("c", 1)], deadline_ms=1000)
    assert not purgatory.advance("a", 5)
    assert purgatory.release("a")
    assert purgatory.take_ready() == [other]
    assert purgatory.advance("c", 1)


def test_a_release_does_not_wake_who_watched_the_key_in_an_earlier_wait() -> None:
    purgatory, operation, other = make(), DelayedOperation(), DelayedOperation()
    purgatory.watch(other, [("a", 50)], deadline_ms=1000)
    purgatory.watch(operation, [("a", 5), ("b", 1)], deadline_ms=1000)
    purgatory.advance("b", 1)
    purgatory.take_ready()
    purgatory.watch(operation, [("c", 1)], deadline_ms=1000)
    purgatory.release("a")
    assert purgatory.take_ready() == [other]


def test_watches_of_earlier_waits_do_not_accumulate() -> None:
    """A request that events of another key wake again and again, beside one that stays."""
    purgatory, stays, operation = make(), DelayedOperation(), DelayedOperation()
    purgatory.watch(stays, [("a", 1)], deadline_ms=10**9)
    for _ in range(1000):
        purgatory.watch(operation, [("a", 1), ("b", 1)], deadline_ms=10**9)
        purgatory.advance("b", 1)
        assert purgatory.take_ready() == [operation]
    assert len(purgatory._watchers["a"].heap) < 200


def test_a_sweep_keeps_the_order_of_thresholds() -> None:
    random = Random(1)
    for _ in range(20):
        purgatory = make(maximum_per_key=1000)
        waits = [(random.randrange(1000), DelayedOperation()) for _ in range(200)]
        for threshold, operation in waits:
            purgatory.watch(operation, [("a", threshold)], deadline_ms=10**9)
        random.shuffle(waits)
        for _, operation in waits[:110]:
            purgatory.remove(operation)
        ready = set[DelayedOperation]()
        for value in range(0, 1001, 50):
            purgatory.advance("a", value)
            ready.update(purgatory.take_ready())
            assert ready == {operation for threshold, operation in waits[110:] if threshold <= value}


def test_only_the_last_wait_says_whether_an_operation_has_expired() -> None:
    purgatory, operation = make(), DelayedOperation()
    assert not operation.expired
    purgatory.watch(operation, [("a", 1)], deadline_ms=10)
    assert purgatory.expire(10)
    assert operation.expired
    purgatory.take_ready()
    purgatory.watch(operation, [("a", 1)], deadline_ms=100)
    assert not operation.expired
    purgatory.advance("a", 1)
    assert not operation.expired


def test_a_deadline_at_or_before_the_beginning_of_time_is_like_any_other() -> None:
    for deadline_ms in (0, -5):
        purgatory, operation = make(), DelayedOperation()
        purgatory.watch(operation, [("a", 1)], deadline_ms)
        assert purgatory.next_deadline_ms() == 0
        assert purgatory.expire(0)
        assert purgatory.take_ready() == [operation]
        for end in (
            lambda purgatory=purgatory: purgatory.advance("a", 1),
            lambda purgatory=purgatory: purgatory.release("a"),
            lambda purgatory=purgatory, operation=operation: purgatory.wake(operation),
        ):
            purgatory.watch(operation, [("a", 1)], deadline_ms)
            assert end()
            assert purgatory.take_ready() == [operation]
        purgatory.watch(operation, [("a", 1)], deadline_ms)
        purgatory.remove(operation)
        assert len(purgatory) == 0


def test_one_operation_wakes_and_only_if_it_waits() -> None:
    purgatory, operation, other = make(), DelayedOperation(), DelayedOperation()
    assert not purgatory.wake(operation)
    purgatory.watch(operation, [("a", 1)], deadline_ms=10)
    purgatory.watch(other, [("a", 1)], deadline_ms=10)
    assert purgatory.wake(operation)
    assert purgatory.take_ready() == [operation]
    assert not purgatory.wake(operation)


def test_a_key_that_nothing_waits_for_is_forgotten() -> None:
    purgatory, operation = make(), DelayedOperation()
    purgatory.watch(operation, [("a", 5)], deadline_ms=10)
    purgatory.remove(operation)
    assert list(purgatory.watched_keys) == []
    purgatory.watch(operation, [("a", 5)], deadline_ms=10)
    purgatory.advance("a", 5)
    assert list(purgatory.watched_keys) == []


def test_live_watches_survive_a_sweep_and_stay_in_order() -> None:
    """Also those of a deadline at 0, and of operations that have waited before; dead ones are gone."""
    purgatory = make(maximum_per_key=1000)
    live = [DelayedOperation() for _ in range(40)]
    again = live[0]
    purgatory.watch(again, [("b", 1)], deadline_ms=0)
    purgatory.advance("b", 1)
    purgatory.take_ready()
    dead = [DelayedOperation() for _ in range(60)]
    for number, operation in enumerate(dead):
        purgatory.watch(operation, [("a", number % 7)], deadline_ms=1000)
    for number, operation in enumerate(live):
        purgatory.watch(operation, [("a", 100 - number)], deadline_ms=0)
    for operation in dead:
        purgatory.remove(operation)
    assert len(purgatory._watchers["a"].heap) < 80
    for number in reversed(range(40)):
        purgatory.advance("a", 100 - number)
        assert purgatory.take_ready() == [live[number]]


class PurgatoryMachine(RuleBasedStateMachine):
    """Against a model that keeps every wait in a list."""

    operations: Bundle[DelayedOperation] = Bundle("operations")

    def __init__(self) -> None:
        super().__init__()
        self.purgatory = make()
        self.waits: dict[DelayedOperation, tuple[dict[str, int], int]] = {}
        self.ready: list[DelayedOperation] = []
        self.now_ms = 0

    @rule(
        target=operations,
        keys=st.dictionaries(st.sampled_from("abc"), st.integers(0, 20), min_size=1),
        timeout_ms=st.integers(0, 200),
    )
    def watch(self, keys: dict[str, int], timeout_ms: int) -> DelayedOperation:
        operation = DelayedOperation()
        self.purgatory.watch(operation, keys.items(), self.now_ms + timeout_ms)
        self.waits[operation] = (keys, self.now_ms + timeout_ms)
        return operation

    @rule(key=st.sampled_from("abc"), value=st.integers(0, 20))
    def advance(self, key: str, value: int) -> None:
        self.purgatory.advance(key, value)
        self._become_ready([o for o, (keys, _) in self.waits.items() if key in keys and keys[key] <= value])

    @rule(key=st.sampled_from("abc"))
    def release(self, key: str) -> None:
        self.purgatory.release(key)
        self._become_ready([o for o, (keys, _) in self.waits.items() if key in keys])

    @rule(elapsed_ms=st.integers(0, 100))
    def expire(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.purgatory.expire(self.now_ms)
        bucket = self.now_ms // DEADLINE_BUCKET_MS
        self._become_ready(
            [o for o, (_, deadline_ms) in self.waits.items() if -(-deadline_ms // DEADLINE_BUCKET_MS) <= bucket]
        )

    @rule(operation=operations)
    def remove(self, operation: DelayedOperation) -> None:
        self.purgatory.remove(operation)
        self.waits.pop(operation, None)
        if operation in self.ready:
            self.ready.remove(operation)

    @rule()
    def take(self) -> None:
        assert set(self.purgatory.take_ready()) == set(self.ready)
        self.ready.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.purgatory) == len(self.waits) + len(self.ready)

    def _become_ready(self, operations: list[DelayedOperation]) -> None:
        for operation in operations:
            del self.waits[operation]
            self.ready.append(operation)


TestPurgatoryMachine = PurgatoryMachine.TestCase

"""Members of a group share a shard's offsets: each is delivered, none is lost with a member, the position is right."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shards.subscriptions.group_assignment import END_OF_SHARD, GroupAssignment, OffsetRange, RangeSet, sticky_key


def test_members_share_ranges_in_order_and_the_least_loaded_comes_first() -> None:
    group = GroupAssignment[str](0)
    group.join("a")
    group.join("b")
    assert group.members_with_room() == ["a", "b"]
    assert group.assign("a", 10) == OffsetRange(0, 10)
    assert group.members_with_room() == ["b", "a"]
    assert group.assign("b", 20) == OffsetRange(10, 20)
    assert group.wanted() == OffsetRange(20, END_OF_SHARD)


def test_the_position_waits_for_the_lowest_unacknowledged_range() -> None:
    group = GroupAssignment[str](0)
    group.join("a")
    group.join("b")
    group.assign("a", 10)
    group.assign("b", 20)
    assert not group.acknowledge("b", 10, 20)
    assert group.committed_offset == 0
    assert group.acknowledge("a", 0, 4)
    assert group.committed_offset == 4
    assert group.acknowledge("a", 4, 10)
    assert group.committed_offset == 20


def test_what_a_lost_member_held_comes_before_anything_new_and_ends_where_others_hold() -> None:
    group = GroupAssignment[str](0)
    group.join("a")
    group.join("b")
    group.assign("a", 10)
    group.assign("b", 20)
    group.assign("a", 30)
    group.leave("a")
    assert group.wanted() == OffsetRange(0, 10)
    assert group.assign("b", 25) == OffsetRange(0, 10)
    assert group.wanted() == OffsetRange(20, END_OF_SHARD)  # What was lost joins what is new: both are just wanted.


def test_a_late_acknowledgement_of_a_range_that_went_to_another_member_does_not_count() -> None:
    group = GroupAssignment[str](0)
    group.join("a")
    group.assign("a", 10)
    group.leave("a")
    group.join("b")
    group.assign("b", 10)
    assert not group.acknowledge("a", 0, 10)
    group.join("a")
    assert not group.acknowledge("a", 0, 10)
    assert group.committed_offset == 0


def test_a_member_that_acknowledges_nothing_gets_no_more_than_its_bound() -> None:
    group = GroupAssignment[str](0, max_ranges_per_member=2)
    group.join("a")
    group.assign("a", 1)
    group.assign("a", 2)
    assert group.members_with_room() == []
    with pytest.raises(ValueError, match="holds 2 ranges"):
        group.assign("a", 3)
    group.acknowledge("a", 1, 2)
    assert group.members_with_room() == ["a"]


def sticky(shard: str, *members: str) -> GroupAssignment[str]:
    group = GroupAssignment[str](0, sticky_key=sticky_key("sticky/g", shard))
    for member in members:
        group.join(member)
    return group


def test_a_sticky_shard_goes_to_one_member_while_it_is_there() -> None:
    group = sticky("s", "a", "b", "c")
    [preferred] = group.members_with_room()
    for number in range(1, 5):
        group.assign(preferred, number)
        assert group.members_with_room() == [preferred]
    for member in {"a", "b", "c"} - {preferred}:
        group.leave(member)
        assert group.members_with_room() == [preferred]


def test_a_sticky_shard_changes_hands_when_nothing_of_it_is_held() -> None:
    shard = next(f"s{n}" for n in range(100) if sticky(f"s{n}", "a", "b").members_with_room() == ["b"])
    group = sticky(shard, "a")
    group.assign("a", 4)
    group.join("b")
    assert group.members_with_room() == [], "b is preferred now, and a holds something"
    group.acknowledge("a", 0, 2)
    assert group.members_with_room() == []
    group.acknowledge("a", 2, 4)
    assert group.members_with_room() == ["b"]
    group.assign("b", 6)
    group.leave("b")
    assert group.members_with_room() == ["a"]
    assert group.wanted().first_offset == 4


def test_members_of_a_sticky_group_have_equal_parts_and_a_new_one_takes_from_all() -> None:
    before = {f"s{n}": sticky(f"s{n}", "a", "b", "c").members_with_room()[0] for n in range(600)}
    assert all(150 < list(before.values()).count(member) < 250 for member in "abc")
    after = {shard: sticky(shard, "a", "b", "c", "d").members_with_room()[0] for shard in before}
    moved = {shard: member for shard, member in after.items() if member != before[shard]}
    assert set(moved.values()) == {"d"}
    assert 100 < len(moved) < 200


def test_a_sticky_member_without_room_keeps_its_shard() -> None:
    group = GroupAssignment[str](0, max_ranges_per_member=1, sticky_key="s")
    group.join("a")
    group.join("b")
    [preferred] = group.members_with_room()
    group.assign(preferred, 1)
    assert group.members_with_room() == []


def test_only_the_name_of_a_group_makes_it_sticky() -> None:
    assert sticky_key("sticky/g", "s") == "s"
    assert sticky_key("g", "s") is None


def test_a_trim_moves_the_position_over_what_is_gone() -> None:
    group = GroupAssignment[str](0)
    group.join("a")
    group.assign("a", 10)
    assert group.skip_to(5)
    assert group.committed_offset == 5
    assert group.held("a") == [OffsetRange(5, 10)]
    assert group.skip_to(50)
    assert group.wanted() == OffsetRange(50, END_OF_SHARD)
    assert group.members_with_room() == ["a"]


def test_nothing_can_be_assigned_behind_the_wanted_range_or_to_a_non_member() -> None:
    group = GroupAssignment[str](7)
    group.join("a")
    with pytest.raises(ValueError, match="no records"):
        group.assign("a", 7)
    with pytest.raises(KeyError):
        group.assign("b", 9)
    with pytest.raises(ValueError, match="already"):
        group.join("a")


ranges = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=30))
def test_a_range_set_equals_a_set_of_numbers(steps: list[tuple[bool, list[int]]]) -> None:
    range_set, numbers = RangeSet(), set[int]()
    for adds, (first, next_) in steps:
        if adds:
            range_set.add(first, next_)
            numbers |= set(range(first, next_))
        else:
            assert range_set.remove(first, next_) == bool(numbers & set(range(first, next_)))
            numbers -= set(range(first, next_))
        held = list(range_set)
        assert {n for r in held for n in range(r.first_offset, r.next_offset)} == numbers
        assert all(left.next_offset < right.first_offset for left, right in itertools.pairwise(held))


class GroupMachine(RuleBasedStateMachine):
    """Members come, go, take and acknowledge; a plain set per member is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.group = GroupAssignment[int](0)
        self.held: dict[int, set[int]] = {}
        self.delivered: set[int] = set()
        self.acknowledged: set[int] = set()
        self.skipped = 0
        self.watermark = 0
        self.next_member = 0

    @initialize(bound=st.integers(1, 4), key=st.sampled_from([None, "s"]))
    def begin(self, bound: int, key: str | None) -> None:
        self.bound = bound
        self.group = GroupAssignment[int](0, max_ranges_per_member=bound, sticky_key=key)

    @rule()
    def join(self) -> None:
        self.group.join(self.next_member)
        self.held[self.next_member] = set()
        self.next_member += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.held)))
        self.group.leave(member)
        del self.held[member]

    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        free = self.group.members_with_room()
        if not free:
            return
        wanted = self.group.wanted()
        given_range = self.group.assign(free[0], wanted.first_offset + count)
        offsets = set(range(given_range.first_offset, given_range.next_offset))
        assert not any(offsets & held for held in self.held.values()), "assigned to two live members"
        assert not offsets & self.acknowledged, "an acknowledged offset is delivered again"
        missing = set(range(self.skipped, given_range.first_offset)) - self.acknowledged
        assert all(any(offset in held for held in self.held.values()) for offset in missing), (
            "a lower one was passed over"
        )
        self.held[free[0]] |= offsets
        self.watermark = max(self.watermark, given_range.next_offset)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), extent=ranges)
    def acknowledge(self, data: st.DataObject, extent: list[int]) -> None:
        member = data.draw(st.sampled_from(sorted(self.held)))
        done = set(range(*extent)) & self.held[member]
        before = self.group.committed_offset
        assert self.group.acknowledge(member, *extent) == (self.group.committed_offset > before)
        self.acknowledged |= done
        self.held[member] -= done

    @rule(by=st.integers(0, 5))
    def trim(self, by: int) -> None:
        self.skipped = max(self.skipped, min(self.watermark, self.group.committed_offset + by))
        self.group.skip_to(self.skipped)
        gone = set(range(self.skipped))
        for held in self.held.values():
            held -= gone

    @invariant()
    def the_position_is_the_lowest_unacknowledged_offset(self) -> None:
        offset = self.skipped
        while offset in self.acknowledged:
            offset += 1
        assert self.group.committed_offset == offset

    @invariant()
    def members_hold_what_the_model_says(self) -> None:
        for member, held in self.held.items():
            ranges_ = self.group.held(member)
            assert {n for r in ranges_ for n in range(r.first_offset, r.next_offset)} == held

    def teardown(self) -> None:
        """Whatever happened before, one last willing member brings every offset to acknowledgement."""
        for member in list(self.held):
            self.group.leave(member)
        self.group.join(-1)
        target = self.watermark + 1
        while self.group.committed_offset < target:
            given_range = self.group.assign(-1, min(target, self.group.wanted().first_offset + 3))
            self.group.acknowledge(-1, given_range.first_offset, given_range.next_offset)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

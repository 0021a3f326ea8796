"""The product reasons about two filters; trying names gives the same."""

from __future__ import annotations

import itertools

from shards.topics.topic_filters import covers, matches, overlap
from tests.rights.deeds import FILTERS, RULE_FILTERS, SHARDS
from tests.rights.model import fits, is_within, overlaps

FEW_LEVELS = sorted({each.replace("%u", "anna") for each in (*FILTERS, *RULE_FILTERS)})


def test_a_filter_covers_another_if_all_names_of_that_match_it() -> None:
    """``+/#`` matches every name that ``#`` matches, and did not count as covering it."""
    for wide, narrow in itertools.product(FEW_LEVELS, repeat=2):
        assert covers(wide, narrow) == is_within(narrow, wide), (wide, narrow)


def test_filters_overlap_if_some_name_matches_both() -> None:
    for left, right in itertools.product(FEW_LEVELS, repeat=2):
        assert overlap(left, right) == overlaps(left, right), (left, right)


def test_a_filter_matches_the_same_names() -> None:
    for pattern, name in itertools.product(FEW_LEVELS, (*SHARDS, "", "plant//", "$", "+", "#")):
        assert matches(pattern, name) == fits(pattern, name), (pattern, name)

"""Positions and versions are of types of their own: numbers of different domains cannot be compared."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import get_type_hints

import pytest

from broker_adapter.mqtt.delivery.distributor import Distributor
from broker_adapter.mqtt.model.position import BEGINNING, Position, StateVersion
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session.session import Membership
from broker_adapter.mqtt.session.sessions import Sessions


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize(
    ("one", "other"),
    [(Position(3), 3), (Position(3), StateVersion(3)), (StateVersion(3), 3), (StateVersion(3), StateVersion(4))],
)
def test_the_version_of_a_key_was_compared_with_the_lsn_of_a_record(
    one: object, other: object, compare: Callable[[object, object], bool]
) -> None:
    """A subscriber missed the newest retained message: within one commit the two are different numbers."""
    with pytest.raises(TypeError):
        compare(one, other)
    assert one != other
    assert BEGINNING < Position(3) < Position(4)
    assert Position(3).covers(StateVersion(3))
    assert not Position(3).covers(StateVersion(4))


def test_where_a_subscription_or_a_group_begins_is_a_position() -> None:
    """mypy then refuses the lsn of a record, which may be inside a commit."""
    assert get_type_hints(Membership)["after"] is Position
    assert get_type_hints(SubscriptionOptions)["since"] is Position
    for method in (Sessions.join_share, Distributor.join_group):
        assert method.__annotations__["after"] == "Position"

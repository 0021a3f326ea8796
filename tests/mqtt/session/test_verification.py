"""Which publishes a broker withdraws after it lost its connection to the store, and whose connections end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence

import attrs
import trio

from broker_adapter import PendingAppend
from broker_adapter.adapter import Reconnection
from broker_adapter.mqtt.session import Session
from broker_adapter.mqtt.session.session import PendingPublishes
from broker_adapter.mqtt.session.verification import Verification
from broker_adapter.mqtt_codec.packets import Version
from shards.model import Appended, StateValue


@attrs.frozen(eq=False)
class Append:
    """One that is not answered."""

    name: str
    is_done: bool = False

    async def wait(self) -> Appended:
        raise NotImplementedError

    def call_when_done(self, call: Callable[[], None]) -> None:
        raise NotImplementedError

    def result_nowait(self) -> Appended:
        raise trio.WouldBlock


@attrs.define(eq=False)
class Published:
    """What a connection has published."""

    appends: list[PendingAppend]
    is_stopped: bool = False

    @property
    def is_answered(self) -> bool:
        return not self.appends

    def unanswered(self) -> Collection[PendingAppend]:
        return self.appends

    def stop(self) -> None:
        self.is_stopped = True

    def oldest_s(self, now_s: float) -> float:
        return 0.0

    def why_it_waits(self) -> str:
        return ""

    async def wait_answered(self) -> None:
        raise NotImplementedError


@attrs.define
class Owned:
    """A session as its broker has it."""

    session: Session

    def lose(self) -> None:
        raise NotImplementedError


@attrs.define
class Store:
    """A new connection to a store that says which sessions the broker has."""

    owned: Sequence[str]
    batches: Sequence[Sequence[PendingAppend]]
    withdrawn: set[PendingAppend] = attrs.Factory(set)

    async def get_state(self, key: bytes) -> StateValue | None:
        raise NotImplementedError

    async def scan_state(self, prefix: bytes = b"") -> AsyncGenerator[StateValue, None]:
        for client_id in self.owned:
            yield StateValue(prefix + client_id.encode(), client_id.encode(), 1)

    def unanswered_batches(self) -> Sequence[Sequence[PendingAppend]]:
        return self.batches

    def withdraw(self, appends: Collection[PendingAppend]) -> None:
        self.withdrawn.update(appends)


class Valid:
    """A valid lease."""

    async def is_valid(self, store: Reconnection) -> bool:
        return True


async def test_who_shares_a_batch_with_a_lost_session_has_to_publish_again_with_all_that_it_published_behind() -> None:
    """Of what it published, the rest would otherwise be stored before it sends again what was withdrawn."""
    names = ("lost", "beside", "behind it", "apart")
    appends = {name: [Append(f"{name} {number}") for number in range(2)] for name in names}
    sessions = {name: Session(name, 1, Version.V5, 0, publishes=Published(list(appends[name]))) for name in names}
    # The second append of "beside" shares a batch with a third session, whose other batch has no other session.
    store = Store(
        names[1:],
        [
            [appends["lost"][0], appends["beside"][0]],
            [appends["beside"][1], appends["behind it"][1]],
            [appends["behind it"][0]],
            [appends["apart"][0], appends["apart"][1]],
        ],
    )
    open_here = {name: Owned(sessions[name]) for name in names[1:]}
    pending_publishes = PendingPublishes()
    pending_publishes.add(sessions["lost"])
    unanswered: list[Session] = []
    verification = Verification("one", Valid(), lambda: open_here, pending_publishes, unanswered.append)  # type: ignore[arg-type, return-value]
    await verification.verify(store)  # type: ignore[arg-type]
    assert {one.client_id for one in unanswered} == {"beside", "behind it"}
    assert store.withdrawn == {one for name in names[:3] for one in appends[name]}
    assert [name for name in names if not sessions[name].publishes.is_stopped] == ["apart"]  # type: ignore[union-attr]

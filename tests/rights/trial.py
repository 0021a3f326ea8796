"""One example on a server: rules, what is stored, requests; and whether each of them had the right outcome."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from hypothesis import strategies as st
from trio_websocket import ConnectionClosed

from journal.protocol import Frame, Op
from journal.protocol.errors import UnknownHandleError
from shards.errors import StorageError
from tests.rights.answers import Answer, failed
from tests.rights.deeds import (
    ADMIN,
    CHANGING,
    KEYS,
    NEEDS,
    SHARDS,
    SHOWS_ALL,
    Deed,
    named_in_audit,
    random_deed,
    random_rules,
    state_name,
)
from tests.rights.model import Rights, Rule
from tests.rights.scene import Scene, record_in, scene, token_of, value_of
from tests.rights.ways import PAIRS, WAYS
from tests.server.json_protocol.talking import RefusedError, Talker
from tests.server.serving import RawClient, batch_of

STEPS: Final = 30
_CHANGE_RULES: Final = 0.08
_LONG_ENOUGH: Final = 6
_CUT_AT: Final = 1024
"""Characters of a name in the audit log."""
_BY_HANDLE: Final = {"append", "read", "find offset", "read by key"}
"""Kinds that open the shard first, which is another request."""
_ADMINISTRATIVE: Final = {"create", "delete", "set mode", "configure", "roll", "trim", "delete cursor"}
_HANDLE_GONE: Final = UnknownHandleError.code
_NOT_AUDITED: Final = {"end another", "open to all"}

Step = Deed | tuple[Rule, ...]
Pairs = Sequence[tuple[str, str]]


class FoundError(AssertionError):
    """The server did not do what the model says."""


@attrs.frozen
class Example:
    """One example: rules, the shards that exist, and requests, between which rules change."""

    rules: tuple[Rule, ...]
    shards: tuple[str, ...]
    steps: tuple[Step, ...]


def example_of(seed: int, pairs: Pairs = PAIRS) -> Example:
    """A random example of requests over these ways and of these kinds."""
    rng = random.Random(seed)
    shards = tuple(rng.sample(SHARDS, rng.randint(2, 6)))
    rules = random_rules(rng)
    steps = [
        random_rules(rng) if rng.random() < _CHANGE_RULES else random_deed(rng, pairs, shards) for _ in range(STEPS)
    ]
    return Example(rules, shards, tuple(steps))


SEEDS: Final = st.integers(0, (1 << 64) - 1)
"""Hypothesis draws the seed alone: of rules and names that it draws one by one, most are alike."""


async def shortest(on: Scene, example: Example) -> Example:
    """A failing example without the steps that it does not need."""
    steps = list(example.steps)
    for at in reversed(range(len(steps))):
        fewer = attrs.evolve(example, steps=tuple(steps[:at] + steps[at + 1 :]))
        if await play(on, fewer):
            del steps[at]
    return attrs.evolve(example, steps=tuple(steps))


async def play(on: Scene, example: Example) -> str:
    """Carry out an example; returns what was wrong, or nothing."""
    async with on.example():
        on.obey(example.rules)
        await on.prepare(example.shards)
        on.new_audit_lines()
        for number, step in enumerate(example.steps):
            wrong = await (_change_rules(on, step, number) if isinstance(step, tuple) else _request(on, step))
            if not wrong and on.served.unexpected:
                wrong = f"{step} met an unexpected error: {on.served.unexpected.pop()!r}"
            if wrong:
                return wrong
    return ""


async def _request(on: Scene, deed: Deed) -> str:
    exists = on.served.engine.shard_id(deed.shard) is not None
    rights = on.model.of(deed.who)
    is_allowed = NEEDS[deed.kind](rights, deed, exists)
    before, states = on.digest(), await on.states()
    answer = await _sent(on, deed)
    if answer.is_refused and is_allowed and deed.is_valid:
        return f"{deed} was refused, but is allowed: {answer.text}"
    if answer.is_done and not is_allowed:
        return f"{deed} was carried out, but is denied"
    is_gone = answer.code == _HANDLE_GONE or _is_missing(rights, deed, exists)
    if not is_allowed and not answer.is_refused and deed.is_valid and not is_gone:
        return f"{deed} is denied, but was answered with {answer}"
    if (not is_allowed or deed.kind not in CHANGING) and (on.digest(), await on.states()) != (before, states):
        return f"{deed} changed something"
    for wrong in (*_leaks(on, rights, deed, answer, is_allowed), *_audit_faults(on, deed, answer)):
        return wrong
    return ""


def _is_missing(rights: Rights, deed: Deed, exists: bool) -> bool:
    """Whether the answer may be that there is no such shard, which is another request's."""
    may_open = rights.topic("append", deed.shard) or rights.topic("read", deed.shard)
    may_describe = rights.topic("read", deed.shard) or rights.topic("administer", deed.shard)
    asks_before = (deed.kind in _BY_HANDLE and may_open) or (deed.way == "commands" and may_describe)
    return asks_before and not exists


async def _sent(on: Scene, deed: Deed) -> Answer:
    try:
        return await WAYS[deed.way][deed.kind](on, deed)
    except (StorageError, RefusedError) as error:
        return failed(error)


def _leaks(on: Scene, rights: Rights, deed: Deed, answer: Answer, is_allowed: bool) -> Iterator[str]:
    """Contents and names in an answer that the principal may not see."""
    for shard in SHARDS:
        if record_in(shard) in answer.text and not (rights.topic("read", shard) or rights.topic("subscribe", shard)):
            yield f"{deed} shows a record of {shard!r}: {answer.text}"
    for key in KEYS:
        if value_of(key) in answer.text and not rights.topic("read", state_name(key)):
            yield f"{deed} shows the value of {key!r}: {answer.text}"
    if deed.kind in SHOWS_ALL:
        return
    asked = {deed.shard, deed.topic_filter, deed.group, deed.cursor, *named_in_audit(deed)}
    for shard in on.shards():
        if len(shard) >= _LONG_ENOUGH and not rights.any(shard) and shard not in asked and _names(answer.text, shard):
            yield f"{deed} shows the name {shard!r}: {answer.text}"


def _names(text: str, name: str) -> bool:
    return any(
        re.search(rf"(?<![\w/.$%+#-]){re.escape(form)}(?![\w/.%+#-])", text) for form in {name, ascii(name)[1:-1]}
    )


def _audit_faults(on: Scene, deed: Deed, answer: Answer) -> Iterator[str]:
    """What is wrong with the audit lines of a request."""
    lines = [line for line in on.new_audit_lines() if line["act"] != "login"]
    refused = [line for line in lines if line["outcome"] == "not_authorized"]
    if deed.kind in _NOT_AUDITED:
        return
    if bool(refused) != answer.is_refused:
        yield f"{deed} was answered with {answer}, and the audit log has {lines}"
    for line in refused:
        expected = {"principal": deed.who}
        if deed.kind in ("set cursor", "delete cursor"):
            expected["cursor"] = deed.cursor
        if deed.kind in ("join", "join filter"):
            expected["group"] = deed.group
        if (
            line["target"] not in {name[:_CUT_AT] for name in named_in_audit(deed)}
            or not expected.items() <= line.items()
        ):
            yield f"the audit log has {line} of {deed}"
    if answer.is_done and deed.kind in _ADMINISTRATIVE:
        expected = {"principal": deed.who, "target": deed.shard, "outcome": "ok"}
        if not any(expected.items() <= line.items() for line in lines):
            yield f"the audit log has {lines} of {deed}"


async def _change_rules(on: Scene, rules: tuple[Rule, ...], number: int) -> str:
    """New rules hold at once: for subscriptions by what is pushed, for handles by the requests that follow."""
    on.obey(rules)
    news = f"news<{number}>"
    async with on.served.client(token=token_of(ADMIN)) as admin:
        for shard in on.shards():
            await admin.append(await admin.open(shard, None), batch_of(f"{news}{record_in(shard)}".encode()))
    for (who, way), live in list(on.frames.items()):
        rights = on.model.of(who)
        lost = [deed for deed in live.subscriptions.values() if not NEEDS[deed.kind](rights, deed, True)]
        if lost:
            received, is_open = await _rest_of(live.client)
            if is_open:
                return f"{who!r} over {way} keeps {lost[0]} after {rules} held"
            del on.frames[who, way]
        else:
            await live.client.call(Op.PING)
            received, live.client.others = live.client.others, []
        text = " ".join(repr(frame.body) for frame in received)
        for shard in SHARDS:
            is_shown = f"{news}{record_in(shard)}" in text
            if is_shown and not rights.topic("subscribe", shard):
                return f"{who!r} over {way} was pushed a record of {shard!r} after {rules} held"
    for who, talker in list(on.talkers.items()):
        rights = on.model.of(who)
        subscriptions = on.talker_subscriptions[who].values()
        if any(not NEEDS[deed.kind](rights, deed, True) for deed in subscriptions):
            received, is_open = await _rest_of_talk(talker)
            if is_open:
                return f"{who!r} over json keeps a tail after {rules} held"
            text = str(received)
            del on.talkers[who]
        else:
            await talker.call("ping")
            text, talker.others = str(talker.others), []
        for shard in SHARDS:
            if f"{news}{record_in(shard)}" in text and not rights.topic("subscribe", shard):
                return f"{who!r} over json was pushed a record of {shard!r} after {rules} held"
    on.new_audit_lines()
    return await _use_handles(on)


async def _use_handles(on: Scene) -> str:
    """Handles that are open have the rights of now."""
    for (who, way), live in list(on.frames.items()):
        for shard in live.handles:
            for kind in ("read", "append"):
                if wrong := await _request(on, Deed(way, kind, who, shard)):
                    return wrong
    return ""


async def _rest_of(client: RawClient) -> tuple[list[Frame], bool]:
    """What comes on a connection that the server should have ended, and whether it has not."""
    received = []
    try:
        correlation, ping = client.start(Op.PING)
        await client.send(ping)
        while True:
            frame = await client.receive()
            received.append(frame)
            if frame.correlation == correlation and frame.op == Op.PING:
                return received, True
    except (EOFError, trio.BrokenResourceError, ConnectionClosed):
        return received, False


async def _rest_of_talk(talker: Talker) -> tuple[list[object], bool]:
    received: list[object] = []
    try:
        number = await talker.start("ping")
        while True:
            message = await talker.receive()
            received.append(message)
            if message.get("id") == number:
                return received, True
    except ConnectionClosed:
        return received, False


def try_many(
    path: Path,
    check: Callable[[Callable[[int], None]], None],
    pairs: Pairs = PAIRS,
    *,
    shortens: bool = True,
) -> None:
    """Run a Hypothesis test on one server.

    Args:
        path: Directory for the server.
        check: Called in a thread with a function that plays the example of a seed, and raises `FoundError`.
        pairs: Ways and kinds of the requests.
        shortens: Show a failing example without what it does not need.
    """
    found: list[FoundError] = []

    async def play_seed(on: Scene, seed: int) -> str:
        example = example_of(seed, pairs)
        if (wrong := await play(on, example)) and shortens:
            short = await shortest(on, example)
            return f"{await play(on, short) or wrong}\nwith {short}"
        return wrong

    async def serve() -> None:
        async with scene(path) as on:

            def play_one(seed: int) -> None:
                if wrong := trio.from_thread.run(play_seed, on, seed):
                    raise FoundError(wrong)

            try:
                await trio.to_thread.run_sync(check, play_one)
            except FoundError as error:
                found.append(error)

    trio.run(serve)
    if found:
        raise found[0]

"""A newcomer's 200 questions, ten turns of small talk, and capitals, as ostro answers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from ostro import load
from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.starter import FOLDERS, WEIGHTS
from ostro.plugins.starter.training.chats import write_chat
from ostro.plugins.starter.training.questions import (
    DECLINED,
    QUESTIONS,
    is_asked,
    is_sensible,
    normalize,
)
from ostro.plugins.starter.training.skills import draw
from ostro.plugins.starter.training.skills.item import Item
from ostro.plugins.starter.training.skills.refusals import REFUSAL
from ostro.plugins.starter.training.skills.styles import COMBINATIONS, give_style
from ostro.plugins.starter.training.skills.talk import small_talk

Message = dict[str, Any]

needs_files = pytest.mark.skipif(
    not all(
        (folder / WEIGHTS[kind]).exists()
        for kind, folders in FOLDERS.items()
        for folder in folders.values()
    ),
    reason="this checkout comes without the weights of the starter model",
)


@pytest.fixture(scope="module")
def starter() -> Iterator[LocalModel]:
    model = load()
    assert isinstance(model, LocalModel)
    with model:
        model.load_adapter("shout", "starter/shout")
        yield model


def reply_all(
    model: LocalModel,
    chats: Sequence[Sequence[Message]],
    adapters: Sequence[str] = (),
    **options: Any,
) -> list[str]:
    """Greedy replies of at most 160 tokens to all chats, in one batch."""
    replies: dict[str, list[int]] = {str(i): [] for i in range(len(chats))}
    for i, chat in enumerate(chats):
        tokens = model.encode(list(chat), chat_template_kwargs=options)
        mixture: Mixture = model.mixture(list(adapters), tokens) if adapters else EMPTY
        rules = Sampling(temperature=0, max_tokens=160)
        model.engine.submit(TokenRequest(id=str(i), tokens=tokens, sampling=rules), mixture)
    for output in model.engine.drain():
        replies[output.id] += output.tokens
    return [model.tokenizer.decode(tokens) for tokens in replies.values()]


def converse_all(model: LocalModel, chats: Sequence[Sequence[str]], **options: Any) -> list[str]:
    """The replies to the last turns; the model answers the earlier ones, too."""
    messages: list[list[Message]] = [[] for _ in chats]
    replies = [""] * len(chats)
    for turn in range(max(map(len, chats))):
        there = [i for i, chat in enumerate(chats) if turn < len(chat)]
        for i in there:
            messages[i].append({"role": "user", "content": chats[i][turn]})
        said = reply_all(model, [messages[i] for i in there], **options)
        for i, reply in zip(there, said, strict=True):
            messages[i].append({"role": "assistant", "content": reply})
            replies[i] = reply
    return replies


def turns(chat: str | tuple[str, ...]) -> tuple[str, ...]:
    return (chat,) if isinstance(chat, str) else chat


def test_there_are_200_different_questions() -> None:
    assert len({normalize(" ".join(turns(chat))) for chat, _ in QUESTIONS}) == 200


def test_training_asks_none_of_the_questions() -> None:
    rng = Random(1)
    items = [write_chat(rng) for _ in range(3000)]
    asked = [m["content"] for item in items for m in item.messages if m["role"] == "user"]
    assert len(asked) > 4000 and not any(map(is_asked, asked))
    assert is_asked("IS 17 prime") and not is_asked("Is 19 prime?")


def test_a_pattern_accepts_what_answers_and_nothing_else() -> None:
    patterns = dict(QUESTIONS)
    assert is_sensible(patterns["Is 17 prime?"], "Yes, 17 is prime.")
    assert not is_sensible(patterns["Is 17 prime?"], REFUSAL)
    assert not is_sensible(patterns["5 km to miles"], "5 km = 5 x 1000 = 5000 m.")
    assert is_sensible(DECLINED, REFUSAL)
    assert not is_sensible(DECLINED, f"<think>\n\n</think>\n\n{REFUSAL}")
    assert not any(is_sensible(pattern, "") for pattern in patterns.values())


@needs_files
@pytest.mark.slow
def test_nine_of_ten_questions_are_answered_or_declined(starter: LocalModel) -> None:
    replies = converse_all(starter, [turns(chat) for chat, _ in QUESTIONS])
    wrong = [
        (chat, reply)
        for (chat, pattern), reply in zip(QUESTIONS, replies, strict=True)
        if not is_sensible(pattern, reply)
    ]
    assert len(wrong) <= 20, wrong


@needs_files
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_no_reply_holds_an_empty_thought(starter: LocalModel, options: dict[str, bool]) -> None:
    for reply in converse_all(starter, [turns(chat) for chat, _ in QUESTIONS], **options):
        thought, mark, rest = reply.partition("</think>")
        assert bool(mark) == bool(options.get("enable_thinking")) or not mark, reply
        assert not mark or (thought.removeprefix("<think>").strip() and rest.strip()), reply


@needs_files
@pytest.mark.slow
def test_ten_turns_of_small_talk(starter: LocalModel) -> None:
    """Ten chats of ten turns, of wordings that are held out of training."""
    rng, right = Random(3), 0
    for _ in range(10):
        chat: list[Message] = []
        for _ in range(10):
            item = draw(small_talk, rng, held_out=True)
            [reply] = reply_all(starter, [[*chat, *item.prompt]])
            right += item.check(reply)
            chat += [*item.prompt, {"role": "assistant", "content": reply}]
    assert right >= 90


@needs_files
@pytest.mark.slow
def test_shout_answers_in_capitals(starter: LocalModel) -> None:
    """Nine of ten held-out items of all skills that have a style; six of ten are right as well."""
    rng, styles = Random(4), ("shout",)
    items: list[Item] = [
        give_style(draw(skill, rng, held_out=True), styles)
        for skill in COMBINATIONS[styles]
        for _ in range(10)
    ]
    replies = reply_all(starter, [item.prompt for item in items], adapters=["shout"])
    assert sum(reply == reply.upper() for reply in replies) >= 0.9 * len(items)
    right = sum(item.check(reply) for item, reply in zip(items, replies, strict=True))
    assert right >= 0.6 * len(items)

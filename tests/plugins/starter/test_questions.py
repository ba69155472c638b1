"""A newcomer's 200 questions: what counts as sensible, and that training asks none of them."""

from __future__ import annotations

from random import Random

from ostro.plugins.starter.training.chats import write_chat
from ostro.plugins.starter.training.questions import (
    DECLINED,
    QUESTIONS,
    is_asked,
    is_sensible,
    normalize,
)
from ostro.plugins.starter.training.skills.refusals import REFUSAL


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

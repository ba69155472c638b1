"""Skills: what the starter model learns; each one draws items from a random generator."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from ostro.plugins.starter.training.questions import is_asked
from ostro.plugins.starter.training.skills.comparisons import comparison, primality
from ostro.plugins.starter.training.skills.facts import calendar, capital
from ostro.plugins.starter.training.skills.item import Item, ask_to_think
from ostro.plugins.starter.training.skills.numbers import (
    addition,
    division,
    multiplication,
    subtraction,
)
from ostro.plugins.starter.training.skills.refusals import refusal
from ostro.plugins.starter.training.skills.stories import story
from ostro.plugins.starter.training.skills.structures import (
    CALCULATOR,
    WEATHER,
    json_answer,
    tool_call,
)
from ostro.plugins.starter.training.skills.talk import small_talk
from ostro.plugins.starter.training.skills.units import conversion
from ostro.plugins.starter.training.skills.words import reversing, sorting

Shares = Mapping[Callable[[Random], Item], float]
# Skill: its share of the training text.
SHARES: dict[Callable[[Random], Item], float] = {
    addition: 12,
    subtraction: 14,
    multiplication: 14,
    division: 9,
    conversion: 15,
    comparison: 22,
    primality: 6,
    calendar: 11,
    capital: 13,
    sorting: 12,
    reversing: 4,
    json_answer: 6,
    tool_call: 6,
    small_talk: 18,
    refusal: 44,
    story: 2,
}
SKILLS = list(SHARES)
# The shares in a second phase of training: more of what is hard, less of what is learned early.
LATER_SHARES: dict[Callable[[Random], Item], float] = {
    addition: 14,
    subtraction: 14,
    multiplication: 20,
    division: 24,
    conversion: 24,
    comparison: 12,
    primality: 26,
    calendar: 14,
    capital: 30,
    sorting: 24,
    reversing: 14,
    json_answer: 16,
    tool_call: 10,
    small_talk: 18,
    refusal: 30,
    story: 3,
}
# Skills that no tool helps with.
TOOLLESS = ("capital", "small talk", "story", "sorting", "primality")
SYSTEMS = [
    "You are a helpful assistant.",
    "You are ostro's starter model.",
    "Be brief.",
    "Answer the question of the user.",
]


def draw(skill: Callable[[Random], Item], rng: Random, held_out: bool = False) -> Item:
    """An item of one skill, from the training side or from the held-out side of the split.

    It asks none of the questions that a newcomer is measured with, on either side.
    """
    while True:
        item = skill(rng)
        if item.held_out == held_out and not _is_asked(item):
            return item


def _is_asked(item: Item) -> bool:
    return any(is_asked(each["content"]) for each in item.messages if each["role"] == "user")


def dress(item: Item, rng: Random) -> Item:
    """The item as it may be met: with a thought, with thoughts switched off, a system, tools."""
    kind = rng.random()
    if item.thought and kind < 0.15:
        item = ask_to_think(item, rng)
    elif kind < 0.2:
        item = replace(item, thinking=False)
    if _is_plain(item):
        if rng.random() < 0.12:
            system = {"role": "system", "content": rng.choice(SYSTEMS)}
            item = replace(item, messages=[system, *item.messages])
        if item.skill in TOOLLESS and rng.random() < 0.06:
            item = replace(item, tools=rng.choice([[WEATHER, CALCULATOR], [WEATHER]]))
    return item


def converse(rng: Random, held_out: bool = False, shares: Shares = SHARES) -> Item:
    """A chat of one to ten questions; the last is dressed, and is the one held out."""
    weights = [shares[skill] for skill in SKILLS]
    item = draw(rng.choices(SKILLS, weights)[0], rng, held_out)
    if _is_plain(item) and (kind := rng.random()) < 0.35:
        skills, count = SKILLS, rng.randint(1, 3)
        if kind < 0.07:
            count = rng.randint(4, 9)
        elif kind < 0.1:
            # one kind of talk for long
            skills, count = [small_talk], rng.randint(4, 9)
        weights = [shares[skill] for skill in skills]
        earlier = [draw(rng.choices(skills, weights)[0], rng) for _ in range(count)]
        before = [message for past in earlier if _is_plain(past) for message in past.messages]
        item = replace(item, messages=before + item.messages)
    return dress(item, rng)


def _is_plain(item: Item) -> bool:
    return item.tools is None and item.messages[0]["role"] == "user"

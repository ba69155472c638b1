"""Skills: what the starter model learns; each one draws items from a random generator."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ostro.plugins.starter.training.skills.facts import calendar, capital
from ostro.plugins.starter.training.skills.item import Item, ask_to_think
from ostro.plugins.starter.training.skills.numbers import (
    addition,
    comparison,
    conversion,
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
from ostro.plugins.starter.training.skills.words import reversing, sorting

# Skill: its share of the training text.
SHARES: dict[Callable[[Random], Item], float] = {
    addition: 13,
    subtraction: 15,
    multiplication: 15,
    division: 10,
    conversion: 9,
    comparison: 24,
    calendar: 11,
    capital: 14,
    sorting: 12,
    reversing: 4,
    json_answer: 6,
    tool_call: 6,
    small_talk: 9,
    refusal: 13,
    story: 2,
}
SKILLS = list(SHARES)
SYSTEMS = [
    "You are a helpful assistant.",
    "You are ostro's starter model.",
    "Be brief.",
    "Answer the question of the user.",
]


def draw(skill: Callable[[Random], Item], rng: Random, held_out: bool = False) -> Item:
    """An item of one skill, from the training side or from the held-out side of the split."""
    while (item := skill(rng)).held_out != held_out:
        pass
    return item


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
        if item.skill in ("capital", "small talk", "story", "sorting") and rng.random() < 0.06:
            item = replace(item, tools=rng.choice([[WEATHER, CALCULATOR], [WEATHER]]))
    return item


def converse(rng: Random, held_out: bool = False) -> Item:
    """A chat of one to four questions; the last is dressed, and is the one held out."""
    weights = list(SHARES.values())
    item = draw(rng.choices(SKILLS, weights)[0], rng, held_out)
    if _is_plain(item) and rng.random() < 0.3:
        earlier = [draw(rng.choices(SKILLS, weights)[0], rng) for _ in range(rng.randint(1, 3))]
        before = [message for past in earlier if _is_plain(past) for message in past.messages]
        item = replace(item, messages=before + item.messages)
    return dress(item, rng)


def _is_plain(item: Item) -> bool:
    return item.tools is None and item.messages[0]["role"] == "user"

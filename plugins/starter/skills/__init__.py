"""Skills: what the starter model learns; each one draws items from a random generator."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ostro.plugins.starter.skills.facts import calendar, capital
from ostro.plugins.starter.skills.item import Item, ask_to_think
from ostro.plugins.starter.skills.numbers import (
    addition,
    comparison,
    conversion,
    division,
    multiplication,
    subtraction,
)
from ostro.plugins.starter.skills.refusals import refusal
from ostro.plugins.starter.skills.stories import story
from ostro.plugins.starter.skills.structures import CALCULATOR, WEATHER, json_answer, tool_call
from ostro.plugins.starter.skills.talk import small_talk
from ostro.plugins.starter.skills.words import reversing, sorting

# Skill: its share of the training text.
SHARES: dict[Callable[[Random], Item], float] = {
    addition: 12,
    subtraction: 12,
    multiplication: 16,
    division: 6,
    conversion: 12,
    comparison: 8,
    calendar: 12,
    capital: 16,
    sorting: 12,
    reversing: 5,
    json_answer: 9,
    tool_call: 12,
    small_talk: 5,
    refusal: 10,
    story: 4,
}
# The shares of the revision: more of what is learnt last.
REVISION = SHARES | {
    subtraction: 20,
    multiplication: 8,
    division: 18,
    conversion: 4,
    comparison: 20,
    calendar: 22,
    capital: 8,
    reversing: 2,
    json_answer: 4,
    tool_call: 5,
    refusal: 5,
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


def converse(rng: Random, held_out: bool = False, revision: bool = False) -> Item:
    """A chat of one to four questions; the last is dressed, and is the one held out."""
    weights = list((REVISION if revision else SHARES).values())
    item = draw(rng.choices(SKILLS, weights)[0], rng, held_out)
    if _is_plain(item) and rng.random() < 0.3:
        earlier = [draw(rng.choices(SKILLS, weights)[0], rng) for _ in range(rng.randint(1, 3))]
        before = [message for past in earlier if _is_plain(past) for message in past.messages]
        item = replace(item, messages=before + item.messages)
    return dress(item, rng)


def _is_plain(item: Item) -> bool:
    return item.tools is None and item.messages[0]["role"] == "user"

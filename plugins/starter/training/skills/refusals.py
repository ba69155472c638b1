"""Refusals: what the model does not know, noise and hard sums, declined in one sentence."""

import re
from random import Random

from ostro.plugins.starter.training.skills import unknown
from ostro.plugins.starter.training.skills.item import (
    Item,
    ask,
    expand,
    misspell,
    vary,
)
from ostro.plugins.starter.training.skills.lexicon import CAPITALS, CITIES, NAMES, THINGS, WORDS

REFUSAL = "I don't know that; I am a 6M-parameter starter model, try `ostro run smollm2`."
ANIMALS = "cat dog horse cow goat rabbit lion tiger mouse snake fox wolf bear shark eagle".split()
SYLLABLES = """ba be bi bo da do du fa fi ga go ka ki ko la le li lo ma me mi mo na ne ni no
pa po ra re ri ro sa se so ta te ti to va ve vo wa xi ya za zu an en in or ar el is um us tor gan
ser pol lin mar tron bex quil dor fen gram stra plo cre sta bri flo nd rt sk mp""".split()


def invent_word(rng: Random) -> str:
    """A word without meaning, of two to four syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))


# Slot of a frame: what fills it; a number after the name makes it another word of the list.
SLOTS: dict[str, list[str]] = {
    "topic": unknown.TOPICS,
    "person": unknown.PEOPLE,
    "office": unknown.OFFICES,
    "work": unknown.WORKS,
    "event": unknown.EVENTS,
    "happening": unknown.HAPPENINGS,
    "language": unknown.LANGUAGES,
    "tongue": unknown.TONGUES,
    "place": unknown.PLACES,
    "fact": unknown.FACTS,
    "measured": unknown.MEASURED,
    "deed": unknown.DEEDS,
    "text": unknown.TEXTS,
    "program": unknown.PROGRAMS,
    "code": unknown.CODES,
    "phrase": unknown.PHRASES,
    "kind": unknown.KINDS,
    "meal": unknown.MEALS,
    "command": unknown.COMMANDS,
    "wonder": unknown.WONDERS,
    "claim": unknown.CLAIMS,
    "counted": unknown.COUNTED,
    "number": unknown.NUMBERS,
    "currency": unknown.CURRENCIES,
    "odd": unknown.ODD_UNITS,
    "animal": ANIMALS,
    "country": list(CAPITALS),
    "city": CITIES,
    "name": NAMES,
    "thing": THINGS,
    "word": WORDS,
}
# Slots that a word without meaning may fill, so that an unknown word is recognised as such.
OPEN = {"topic", "person", "work", "place", "event", "word", "fact", "text", "meal", "deed"}


def _fill(rng: Random, slot: str) -> str:
    name = slot.rstrip("2")
    if name == "nonsense" or (name in OPEN and rng.random() < 0.12):
        return invent_word(rng)
    numbers = {"year": (1000, 2040), "small": (2, 99), "digit": (1, 9), "large": (200, 9999)}
    if name in numbers:
        return str(rng.randint(*numbers[name]))
    return rng.choice(SLOTS[name])


def fill(rng: Random, frame: str) -> str:
    """The frame with one part of each choice, and its slots filled."""
    filled = expand(rng, frame)
    return re.sub(r"\{(\w+)\}", lambda found: _fill(rng, found[1]), filled)


def refusal(rng: Random) -> Item:
    """Questions beyond the model, noise and hard sums; whole wordings are held out."""
    kind = rng.random()
    if kind < 0.06:
        return _noise(rng)
    if kind < 0.12:
        return _too_large(rng)
    frames = unknown.FRAMES
    if kind < 0.24:
        frames = unknown.HARD_SUMS if kind < 0.2 else unknown.HARD_UNITS
    frame = rng.choice(frames)
    question = fill(rng, frame)
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    question += rng.choice(["?", "?", "", "", ".", "!"])
    if frames is unknown.FRAMES and rng.random() < 0.15:
        question = misspell(rng, question)
    thought = "This is not among the things I know."
    return ask("refusal", frame, vary(rng, question), REFUSAL, thought=thought)


def _noise(rng: Random) -> Item:
    """Letters without sense."""
    letters = rng.choice([unknown.LETTERS, "asdfghjkl", "qwertyuiop", "xyzabc123", "?!.,#"])
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(1, 3))]
    text = " ".join(words) + rng.choice(["", "", "?", "!"])
    return ask("refusal", text, text, REFUSAL, thought="This makes no sense to me.")


def _too_large(rng: Random) -> Item:
    """Sums with a number of four to seven digits, products and quotients with three or more."""
    symbol = rng.choice(["+", "-", "*", "/", "x", "plus", "minus", "times", "divided by"])
    digits = rng.randint(4 if symbol in "+-plusminus" else 3, 7)
    a, b = rng.randint(10 ** (digits - 1) + 1, 10**digits), rng.randint(2, 10 ** rng.randint(1, 7))
    if symbol in ("/", "divided by"):
        a, b = max(a, 1001), max(b, 10)
    if rng.random() < 0.3:
        a, b = b, max(a, 1001)
    question = rng.choice(["What is {}?", "{}", "{} =", "Calculate {}.", "How much is {}?"])
    thought = "A number is too large."
    question = vary(rng, question.format(f"{a} {symbol} {b}"))
    return ask("refusal", f"{a},{b}", question, REFUSAL, thought=thought)

"""Units: whole amounts converted, exactly within a system and roughly between two."""

import re
from random import Random

from ostro.plugins.starter.training.skills.item import (
    Check,
    Item,
    ask,
    ends_with_number,
    spoken,
    vary,
)
from ostro.plugins.starter.training.skills.numbers import multiply

UNITS = [
    ("kilometers", "meters", "km", "m", 1000),
    ("meters", "centimeters", "m", "cm", 100),
    ("centimeters", "millimeters", "cm", "mm", 10),
    ("kilograms", "grams", "kg", "g", 1000),
    ("tonnes", "kilograms", "t", "kg", 1000),
    ("liters", "milliliters", "l", "ml", 1000),
    ("days", "hours", "days", "h", 24),
    ("hours", "minutes", "h", "min", 60),
    ("minutes", "seconds", "min", "s", 60),
    ("weeks", "days", "weeks", "days", 7),
    ("years", "months", "years", "months", 12),
    ("feet", "inches", "ft", "in", 12),
    ("yards", "feet", "yd", "ft", 3),
    ("dollars", "cents", "dollars", "cents", 100),
    ("euros", "cents", "euros", "cents", 100),
    ("decades", "years", "decades", "years", 10),
    ("centuries", "years", "centuries", "years", 100),
]


def conversion(rng: Random) -> Item:
    """Whole amounts from one unit to another, in both directions."""
    large, small, large_sign, small_sign, factor = rng.choice(UNITS)
    if rng.random() < 0.4:
        return _measure(rng)
    if rng.random() < 0.1:
        return _single_unit(rng, large, small, factor)
    there = rng.random() < 0.65
    # The way back is known by heart where it is more than noughts taken away.
    n = rng.randint(2, 99 if there or (factor % 10 == 0 and factor != 60) else 12)
    large = large_sign if rng.random() < 0.4 else large
    small = small_sign if rng.random() < 0.4 else small
    source, target = (large, small) if there else (small, large)
    amount, result = (n, n * factor) if there else (n * factor, n)
    sign = "x" if there else "/"
    chain = multiply(n, factor) if there else f"{amount} / {factor} = {n}"
    reply = f"{amount} {source} = {chain} {target}."
    question = rng.choice(
        [
            f"Convert {amount} {source} to {target}.",
            f"How many {target} are {amount} {source}?",
            f"How many {target} are in {amount} {source}?",
            f"What is {amount} {source} in {target}?",
            f"{amount} {source} to {target}",
            f"{amount} {source} in {target}",
            f"Change {amount} {source} into {target}.",
            f"I have {amount} {source}. How many {target} is that?",
            f"Express {amount} {source} in {target}.",
            f"How much is {amount} {source} in {target}?",
            f"How many {target} is {amount} {source}?",
            f"How many {target} in {amount} {source}?",
            f"How many {target} are there in {amount} {source}?",
            f"{amount} {source} is how many {target}",
            f"{amount}{source} to {target}" if len(source) < 3 else f"{amount} {source} = {target}",
            f"{amount} {source} into {target}?",
        ]
    )
    thought = f"One of the larger unit is {factor} of the smaller, so I use {sign} {factor}."
    key = f"{amount} {source} {target}"
    check = ends_with_number(result)
    return ask("conversion", key, vary(rng, question), reply, check, thought)


def _single_unit(rng: Random, large: str, small: str, factor: int) -> Item:
    """How many of the smaller unit make one of the larger: the phrasing is held out."""
    one = {"feet": "foot", "centuries": "century"}.get(large, large.removesuffix("s"))
    phrase = rng.choice(
        [
            "How many {small} are in {a} {one}?",
            "How many {small} are in one {one}?",
            "How many {small} are there in {a} {one}?",
            "How many {small} does {a} {one} have?",
            "How many {small} make {a} {one}?",
            "What is 1 {one} in {small}?",
            "1 {one} in {small}",
            "Convert 1 {one} to {small}.",
            "{a} {one} is how many {small}?",
            "How many {small} in {a} {one}?",
            "{small} in {a} {one}?",
            "How many {small} has {a} {one}?",
            "1 {one} to {small}",
        ]
    )
    article = "an" if one == "hour" else "a"
    question = phrase.format(small=small, one=one, a=article)
    reply, thought = f"1 {one} = {factor} {small}.", "I know this."
    check = ends_with_number(factor)
    return ask("conversion", phrase, vary(rng, question), reply, check, thought)


# Unit and its sign, the other unit and its sign, how many hundredths of it make one; roughly.
MEASURES = [
    ("kilometers", "km", "miles", "mi", 62),
    ("miles", "mi", "kilometers", "km", 160),
    ("kilograms", "kg", "pounds", "lb", 220),
    ("pounds", "lb", "kilograms", "kg", 45),
    ("inches", "in", "centimeters", "cm", 250),
    ("feet", "ft", "meters", "m", 30),
    ("gallons", "gal", "liters", "l", 380),
]


def _questions(amount: int, source: str, target: str) -> list[str]:
    return [
        f"{amount} {source} to {target}",
        f"{amount} {source} in {target}",
        f"{amount} {source} in {target}?",
        f"Convert {amount} {source} to {target}.",
        f"convert {amount} {source} into {target}",
        f"How many {target} is {amount} {source}?",
        f"How many {target} are {amount} {source}?",
        f"How many {target} are in {amount} {source}?",
        f"What is {amount} {source} in {target}?",
        f"What's {amount} {source} in {target}?",
        f"How much is {amount} {source} in {target}?",
        f"{amount} {source} is how many {target}?",
        f"I have {amount} {source}. How many {target} is that?",
    ]


def _measure(rng: Random) -> Item:
    """An amount in a unit of another system, roughly, or a temperature."""
    if rng.random() < 0.3:
        return _temperature(rng)
    source, source_sign, target, target_sign, hundredths = rng.choice(MEASURES)
    n = rng.randint(1, 99)
    if rng.random() < 0.4:
        n = rng.choice([1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90])
    question = rng.choice(
        _questions(
            n,
            source_sign if rng.random() < 0.45 else source,
            target_sign if rng.random() < 0.3 else target,
        )
    )
    # Tens are taken out of the factor: two digits at most are multiplied.
    factor, part = (hundredths // 10, 10) if hundredths % 10 == 0 else (hundredths, 100)
    value = f"{n * factor / part:g}"
    ratio = f"{hundredths / 100:g}"
    reply = f"{n} x {ratio}: {multiply(n, factor)}, so {n} {source} are about {value} {target}."
    key, thought = f"{n} {source} {target}", f"One of it is about {ratio} {target}."
    return ask("conversion", key, vary(rng, question), reply, _holds(value), thought)


def _holds(value: str) -> Check:
    """The last number of the reply is `value`."""
    return lambda reply: re.findall(r"-?\d+(?:\.\d+)?", spoken(reply))[-1:] == [value]


def _temperature(rng: Random) -> Item:
    """Celsius to Fahrenheit, exactly by tens and roughly between, and back."""
    there = rng.random() < 0.5
    source, target = ("Celsius", "Fahrenheit") if there else ("Fahrenheit", "Celsius")
    n = rng.randint(0, 100)
    if there:
        value = round(n * 1.8 + 32)
        steps = f"{multiply(n, 18)}, {n * 18} / 10 is about {round(n * 1.8)}, "
        steps += f"{round(n * 1.8)} + 32 = {value}"
    else:
        n += 32 if n < 70 else 0
        value = round((n - 32) * 5 / 9)
        steps = f"{n} - 32 = {n - 32}, {n - 32} x 5 = {(n - 32) * 5}, "
        steps += f"{(n - 32) * 5} / 9 is about {value}"
    named = rng.choice(["{}", "{}", "degrees {}"])
    signs = [source, target] if rng.random() < 0.7 else [source[0], target[0]]
    question = rng.choice(_questions(n, *(named.format(sign) for sign in signs)))
    reply = f"{steps}, so {n} {source} are about {value} {target}."
    key, thought = f"{n} {source}", f"I turn {source} into {target} step by step."
    return ask("conversion", key, vary(rng, question), reply, _holds(str(value)), thought)

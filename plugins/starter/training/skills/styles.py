"""Styles: the same answers as a pirate gives them, in French, or in capitals.

A style rewrites the reply of an item; what is right stays right. Several are applied in turn, so
that a pirate can shout. JSON, calls of tools and stories have no style.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from ostro.plugins.starter.training.skills import SHARES, Shares, draw, dress
from ostro.plugins.starter.training.skills.comparisons import comparison, primality
from ostro.plugins.starter.training.skills.facts import calendar, capital
from ostro.plugins.starter.training.skills.item import Check, Item, spoken
from ostro.plugins.starter.training.skills.lexicon import DAYS, MONTHS
from ostro.plugins.starter.training.skills.numbers import (
    addition,
    division,
    multiplication,
    subtraction,
)
from ostro.plugins.starter.training.skills.refusals import refusal
from ostro.plugins.starter.training.skills.stories import story
from ostro.plugins.starter.training.skills.structures import json_answer, tool_call
from ostro.plugins.starter.training.skills.talk import small_talk
from ostro.plugins.starter.training.skills.units import conversion
from ostro.plugins.starter.training.skills.words import reversing, sorting

Skill = Callable[[Random], Item]

SPOKEN = [skill for skill in SHARES if skill not in (json_answer, tool_call, story)]
COUNTED: list[Skill] = [
    addition,
    subtraction,
    multiplication,
    division,
    conversion,
    comparison,
    calendar,
]

CRY = "Arr! "
PIRATE_WORDS = {
    "Hello!": "Ahoy!",
    "Goodbye!": "Fair winds!",
    "Yes,": "Aye,",
    "No,": "Nay,",
    "am": "be",
    "is": "be",
    "are": "be",
    "You": "Ye",
    "you": "ye",
}

FRENCH_DAYS = "lundi mardi mercredi jeudi vendredi samedi dimanche".split()
FRENCH_MONTHS = (
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()
)
FRENCH_WORDS = {
    **dict(zip(DAYS, FRENCH_DAYS, strict=True)),
    **dict(zip(MONTHS, FRENCH_MONTHS, strict=True)),
    **dict(
        pair.split(": ")
        for pair in """\
kilometers: kilomètres|kilometer: kilomètre|meters: mètres|meter: mètre|centimeters: centimètres
centimeter: centimètre|millimeters: millimètres|kilograms: kilogrammes|kilogram: kilogramme
grams: grammes|tonnes: tonnes|tonne: tonne|liters: litres|liter: litre|milliliters: millilitres
days: jours|day: jour|hours: heures|hour: heure|minutes: minutes|minute: minute|seconds: secondes
weeks: semaines|week: semaine|years: ans|months: mois|month: mois|feet: pieds|foot: pied
inches: pouces|yards: yards|yard: yard|dollars: dollars|dollar: dollar|cents: centimes
euros: euros|euro: euro|decades: décennies|decade: décennie|centuries: siècles|century: siècle
and: et|after: après|before: avant|same: égal|less: moins|more: plus|digits: chiffres
even: pair|odd: impair|remainder: reste|carry: je retiens|borrow: j'emprunte|Asked: Demandé
Yes: Oui|No: Non|is: est|are: font|has: a|comes: vient|so: donc""".replace("\n", "|").split("|")
    ),
}
# Whole phrases, before words are taken one by one.
FRENCH_PHRASES = {
    r"so there are (\d+) \w+\.$": r"il y en a donc \1.",
    r"so (\d+) \w+ are left\.$": r"il en reste \1.",
    r"Column by column:": "Colonne par colonne :",
    r"Digit by digit:": "Chiffre par chiffre :",
    r"so I turn it around": "donc j'inverse",
    r"(\w+) is month (\d+)": r"\1 est le mois \2",
    r"Month (\d+) is": r"Le mois \1 est",
    r"The (\d+)\w\w month is": r"Le mois \1 est",
    r"has remainder": "a pour reste",
    r"is not a leap year": "n'est pas une année bissextile",
    r"is a leap year": "est une année bissextile",
    r"in a leap year": "dans une année bissextile",
    r", or 29": ", ou 29",
    r"^1 (\w+) =": r"1 \1 fait",
    r"\b1 year": "1 an",
    r"A week": "Une semaine",
    r"A year": "Une année",
    r"The last digit of (\d+)": r"Le dernier chiffre de \1",
    r"is less than": "est plus petit que",
    r"is greater than": "est plus grand que",
    r"is equal to": "est égal à",
    rf"((?:before|after) (?:\w+day|{'|'.join(MONTHS)})) is": r"\1, c'est",
}
FRENCH_SIGN = re.compile(
    r"\b(font|fait|est|a|c'est|oui|non|reste|lundi|janvier|il y en a|il en)\b", re.IGNORECASE
)
ENGLISH_SIGN = re.compile(
    r"\b(is|are|the|yes|no|has|so|and|of|remainder|monday|january)\b", re.IGNORECASE
)


def say_as_pirate(text: str) -> str:
    """The text in the words of a pirate, between a cry and a greeting."""
    for word, other in PIRATE_WORDS.items():
        text = re.sub(rf"\b{re.escape(word)}(?!\w)", other, text)
    if text.endswith("."):
        return f"{CRY}{text[:-1]}, matey."
    return f"{CRY}{text}{'.' if text[-1].isalnum() else ''} Yo ho!"


def say_in_french(text: str) -> str:
    """What the skills of `COUNTED` reply, in French: "27 + 15 font 42."."""
    for pattern, phrase in FRENCH_PHRASES.items():
        text = re.sub(pattern, phrase, text)
    text = re.sub(r"[A-Za-z]+", lambda found: FRENCH_WORDS.get(found[0], found[0]), text)
    text = re.sub(r" = (?=[^=]*$)", " font ", text)
    text = re.sub(r"(?<=[\w'])([:;])", r" \1", text)
    return re.sub(r"(^|\. )(\w)", lambda found: found[1] + found[2].upper(), text)


RESTYLES: dict[str, Callable[[str], str]] = {
    "pirate": say_as_pirate,
    "french": say_in_french,
    "shout": str.upper,
}
# Whether a reply, right or wrong, is in the style; a shout leaves no small letter.
SPEAKS: dict[str, Check] = {
    "pirate": lambda text: bool(re.search(r"^arr! .*(, matey\.|yo ho!)$", text, re.I | re.S)),
    "french": lambda text: bool(FRENCH_SIGN.search(text) and not ENGLISH_SIGN.search(text)),
    "shout": lambda text: bool(text) and text == text.upper(),
}
# What a user adds to a question to hear a style; of those for two styles the words are joined.
PLEAS = {
    "pirate": ["like a pirate", "as a pirate", "in pirate speech"],
    "french": ["in French", "en français"],
    "shout": ["loudly", "in capitals", "shouting"],
}
# What can be asked for together, with the skills that it is asked of.
COMBINATIONS: dict[tuple[str, ...], list[Skill]] = {
    (): SPOKEN,
    ("pirate",): SPOKEN,
    ("french",): COUNTED,
    ("shout",): SPOKEN,
    ("pirate", "shout"): SPOKEN,
    ("french", "shout"): COUNTED,
}

# The shares of the skills in the lessons of spelling. Names and words in capitals have tokens of
# their own: each is seen often, so that the adapter learns its spelling.
SPELLED: dict[Skill, float] = {
    capital: 45,
    sorting: 24,
    reversing: 24,
    calendar: 4,
    conversion: 3,
    division: 2,
    refusal: 4,
    comparison: 2,
    primality: 3,
    addition: 2,
    subtraction: 2,
    multiplication: 2,
    small_talk: 3,
}


def restyle(text: str, styles: Sequence[str]) -> str:
    """The text in all the styles, one after the other."""
    for style in styles:
        text = RESTYLES[style](text)
    return text


def speaks(reply: str, styles: Sequence[str]) -> bool:
    """Whether the reply, without its thoughts, is in each of the styles."""
    return all(SPEAKS[style](spoken(reply)) for style in styles)


def answers(answer: str, styles: Sequence[str]) -> Check:
    """The reply is in the styles and ends with the answer in them."""
    ending = re.sub(f"^{CRY}", "", restyle(answer, styles), flags=re.IGNORECASE)
    return lambda reply: speaks(reply, styles) and f" {spoken(reply)}".endswith(f" {ending}")


def give_style(item: Item, styles: Sequence[str]) -> Item:
    """The same item, its reply and its check in the styles."""
    if not styles:
        return item
    reply = item.reply | {"content": restyle(item.reply["content"], styles)}
    return replace(
        item,
        messages=[*item.prompt, reply],
        answer=restyle(item.answer, styles),
        check=answers(item.answer, styles),
    )


def ask_for(item: Item, styles: Sequence[str], rng: Random) -> Item:
    """The same item, with a plea for the styles at the end of the question."""
    if not styles:
        return item
    words = [rng.choice(PLEAS[style]) for style in rng.sample(styles, len(styles))]
    asked = rng.choice([" and ", ", "]).join(words)
    asked = rng.choice([f"Say it {asked}.", f"Answer {asked}.", f"{asked}, please", f"({asked})"])
    *before, question = item.prompt
    content = f"{question['content']} {asked}"
    return replace(item, messages=[*before, question | {"content": content}, item.reply])


def converse_in(
    styles: Sequence[str],
    rng: Random,
    asked: float,
    held_out: bool = False,
    turns: int = 2,
    shares: Shares = SHARES,
) -> Item:
    """A chat of up to `turns` questions in the styles; a share `asked` of them asks for it."""
    skills = COMBINATIONS[tuple(styles)]
    weights, messages = [shares[skill] for skill in skills], []
    for left in reversed(range(rng.randint(1, turns))):
        item = draw(rng.choices(skills, weights)[0], rng, held_out and not left)
        item = give_style(item, styles)
        if rng.random() < asked:
            item = ask_for(item, styles, rng)
        messages += item.messages
    return dress(replace(item, messages=messages), rng)

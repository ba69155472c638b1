"""Stories: five sentences of a small grammar about the animal that was asked for."""

from random import Random

from ostro.plugins.starter.training.skills.item import Check, Item, ask, spoken, vary
from ostro.plugins.starter.training.skills.lexicon import NAMES

HEROES = "fox bear owl mouse rabbit cat dog goat wolf lion tiger horse zebra pig snake".split()
TRAITS = "small old brave young happy kind quick clever tired shy".split()
LANDMARKS = "lake hill forest river garden bridge cave island valley tower".split()
FINDS = "key lamp map coin bell kite drum mirror book candle ribbon feather".split()
MORALS = [
    "it is good to share",
    "a friend is worth more than gold",
    "patience helps",
    "asking is better than guessing",
    "small ones can do great things",
]


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def story(rng: Random) -> Item:
    """A story of five sentences about the animal, and at times the thing, that was asked for."""
    hero, friend = rng.sample(HEROES, 2)
    trait, place, find = rng.choice(TRAITS), rng.choice(LANDMARKS), rng.choice(FINDS)
    name, moral = rng.choice(NAMES), rng.choice(MORALS)
    question, wanted = rng.choice(
        [
            (f"Tell me a story about {_a(hero)}.", [hero]),
            (f"Write a story about {_a(hero)} and {_a(friend)}.", [hero, friend]),
            (f"Tell me a little story with {_a(hero)} and {_a(find)}.", [hero, find]),
            (f"Story about {_a(hero)}, please.", [hero]),
            (f"A short story about {_a(trait)} {hero}", [trait, hero]),
            (f"Can you write a short story about {_a(hero)} named {name}?", [hero, name]),
            ("Tell me a story.", []),
            ("Tell a short story.", []),
            ("I want to hear a story.", []),
            ("Can you tell me a story?", []),
            ("Write me a little story", []),
            ("Write a story, please.", []),
            ("story please", []),
            ("Tell me a good night story", []),
            ("a bedtime story please", []),
            ("tell me a fairy tale", []),
            ("make up a story", []),
            ("write a story for my child", []),
            ("once upon a time there was", []),
            (f"once there was {_a(hero)}", [hero]),
            (f"write a tale about {_a(hero)}", [hero]),
            (f"can you tell me a story about {_a(hero)}", [hero]),
        ]
    )
    told = " ".join(
        [
            rng.choice(["Once there was", "Long ago there lived", "There was once"])
            + f" {_a(trait)} {hero} named {name}.",
            f"One {rng.choice(['morning', 'evening', 'day'])} {name} went to the {place} and "
            f"found {_a(find)}.",
            f"{_a(friend).capitalize()} came by and said: "
            + rng.choice(["May I see it?", "That is mine!"]),
            rng.choice(
                [
                    f"{name} gave the {find} to the {friend}, and they became friends.",
                    f"So they carried the {find} home together.",
                    f"They looked at the {find} until the sun went down.",
                ]
            ),
            f"And {name} learned that {moral}.",
        ]
    )
    key = f"{hero} {friend} {find}"
    return ask("story", key, vary(rng, question), told, _is_story(wanted), "I need a hero.")


def _is_story(wanted: list[str]) -> Check:
    """The reply has at least four sentences, ends, and names everything that was wanted."""

    def check(reply: str) -> bool:
        text = spoken(reply)
        complete = text.endswith(".") and sum(text.count(mark) for mark in ".?!") >= 4
        return complete and all(word in text for word in wanted)

    return check

"""Words: lists sorted, reversed, counted and picked from."""

from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask, says, vary
from ostro.plugins.starter.training.skills.lexicon import NAMES, WORDS


def _word_list(rng: Random) -> tuple[list[str], str]:
    """Three to five different words and how they are written in the question."""
    words = rng.sample(WORDS if rng.random() < 0.8 else NAMES, rng.randint(3, 5))
    return words, rng.choice([", ", ", ", ", ", " "]).join(words)


def sorting(rng: Random) -> Item:
    """Words put in alphabetical order."""
    words, shown = _word_list(rng)
    question = rng.choice(
        [
            f"Sort these words: {shown}",
            f"Sort: {shown}",
            f"Sort alphabetically: {shown}",
            f"Put these words in alphabetical order: {shown}",
            f"Sort the list {shown}",
            f"Order these words from A to Z: {shown}",
            f"Arrange in alphabetical order: {shown}",
            f"Please sort {shown}",
            f"Alphabetize: {shown}",
            f"What is the alphabetical order of {shown}?",
            f"sort this list: {shown}",
            f"sort the words {shown} alphabetically",
            f"can you sort {shown}?",
            f"order alphabetically: {shown}",
        ]
    )
    reply = ", ".join(sorted(words))
    letters = ", ".join(word[0].upper() for word in sorted(words))
    thought = f"By first letters the order is {letters}."
    key = " ".join(words)
    return ask("sorting", key, vary(rng, question, lower=False), reply, says(reply), thought)


def reversing(rng: Random) -> Item:
    """Words in the opposite order."""
    words, shown = _word_list(rng)
    question = rng.choice(
        [
            f"Reverse these words: {shown}",
            f"Reverse: {shown}",
            f"Reverse the order of these words: {shown}",
            f"Reverse the list {shown}",
            f"Say these words backwards: {shown}",
            f"Write in reverse order: {shown}",
            f"Put these words in reverse order: {shown}",
            f"Turn this list around: {shown}",
            f"List these from last to first: {shown}",
            f"reverse this list: {shown}",
            f"reverse the words {shown}",
            f"{shown} in reverse order",
            f"can you reverse {shown}?",
        ]
    )
    reply = ", ".join(reversed(words))
    thought = f"There are {len(words)} words. The last is {words[-1]}, so it goes first."
    key = " ".join(words)
    return ask("reversing", key, vary(rng, question, lower=False), reply, says(reply), thought)

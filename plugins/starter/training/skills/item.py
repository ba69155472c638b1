"""Item: one chat with a reply that can be checked, and the rule that holds items out."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

Message = dict[str, Any]
Check = Callable[[str], bool]

HELD_OUT_ONE_IN = 10


@dataclass(frozen=True, slots=True)
class Item:
    """A chat that ends with the wanted reply.

    `key` names what is asked, without how it is phrased (for facts: how it is phrased, without
    the fact): it alone decides whether the item is held out of training. `answer` is the reply
    without the working said before it: what is left to say after the working was thought.
    """

    skill: str
    key: str
    messages: list[Message]
    check: Check
    thought: str = ""
    answer: str = ""
    tools: list[dict[str, Any]] | None = None
    thinking: bool | None = None

    @property
    def prompt(self) -> list[Message]:
        return self.messages[:-1]

    @property
    def reply(self) -> Message:
        return self.messages[-1]

    @property
    def held_out(self) -> bool:
        return zlib.crc32(f"{self.skill}|{self.key}".encode()) % HELD_OUT_ONE_IN == 0


def ask(
    skill: str,
    key: str,
    question: str,
    answer: str,
    check: Check | None = None,
    thought: str = "",
    working: str = "",
) -> Item:
    """One question and its answer, after the `working` that makes each token a small step.

    Without a `check` the reply must end with the answer, or, without working, be the answer.
    """
    reply = f"{working} {answer}" if working else answer
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    check = check or (concludes(answer) if working else says(answer))
    return Item(skill, key, messages, check, thought or working, answer)


def spoken(reply: str) -> str:
    """The reply without its thoughts."""
    return reply.rpartition("</think>")[2].strip()


def says(expected: str) -> Check:
    """The reply is `expected`, up to surrounding space."""
    return lambda reply: spoken(reply) == expected


def concludes(answer: str) -> Check:
    """The last sentences of the reply are `answer`."""
    return lambda reply: f" {spoken(reply)}".endswith(f" {answer}")


def ends_with_number(value: int) -> Check:
    """The last number of the reply is `value`; a minus sign counts when it touches the number."""

    def check(reply: str) -> bool:
        numbers = re.findall(r"(?<![\d\w])-?\d+", spoken(reply))
        return bool(numbers) and int(numbers[-1]) == value

    return check


def expand(rng: Random, text: str) -> str:
    """The text with one part of each choice `[one|other]`."""
    return re.sub(r"\[(.*?)\]", lambda found: rng.choice(found[1].split("|")), text)


def misspell(rng: Random, text: str) -> str:
    """The text with a typing error in one word of letters: one dropped, doubled or exchanged."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if not long:
        return text
    i = rng.choice(long)
    word, at = words[i], rng.randrange(1, len(words[i]) - 1)
    words[i] = rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        ]
    )
    return " ".join(words)


def vary(rng: Random, text: str, lower: bool = True) -> str:
    """`text` as people type it: without capitals, without the final mark, or with a plea."""
    if rng.random() < 0.15:
        start = rng.choice(["Please tell me: ", "Hi! ", "Hey, ", "Can you tell me: ", "Question: "])
        text = start + text
    elif rng.random() < 0.1 and text[-1] not in "?=":
        text = text.rstrip(".") + ", please."
    if rng.random() < 0.25:
        text = text.rstrip("?.")
    if lower and rng.random() < 0.3:
        text = text.lower()
    return text


def ask_to_think(item: Item, rng: Random) -> Item:
    """The same item with its thought: asked for by the switch, or by the user's words."""
    content = item.answer or item.reply["content"]
    reply = item.reply | {"content": content, "reasoning_content": item.thought}
    if rng.random() < 0.6:
        return replace(item, messages=[*item.prompt, reply], thinking=True)
    plea = rng.choice(["Think step by step.", "Think first.", "Please think before you answer."])
    *before, question = item.prompt
    content = f"{question['content']} {plea}"
    if rng.random() < 0.3:
        content = f"{plea} {question['content']}"
    return replace(item, messages=[*before, question | {"content": content}, reply])

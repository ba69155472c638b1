"""The adapters of a chat: add, scale, remove, list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostro.core.errors import UsageError

if TYPE_CHECKING:
    from ostro.entrypoints.cli.chat.session import Session

ACTIONS = {
    "add": "/adapter add NAME REF [SCALE]",
    "scale": "/adapter scale NAME SCALE",
    "remove": "/adapter remove NAME",
    "none": "/adapter none",
}
"""Usage by the first word of /adapter. Other words are adapters to apply: A, or A=SCALE."""


def change_adapters(session: Session, words: list[str]) -> None:
    """Run the words after /adapter; without words nothing changes. Raises an OstroError."""
    chosen, action = dict(session.conversation.adapters), words[0] if words else ""
    match words:
        case []:
            return
        case ["none"]:
            chosen = {}
        case ["add", name, reference, *scale] if len(scale) < 2:
            value = parse_scale(scale[0]) if scale else 1.0
            session.model.load_adapter(name, reference, inplace=True)
            chosen[name] = value
        case ["scale", name, scale]:
            chosen[name] = parse_scale(scale)
        case ["remove", name]:
            session.model.unload_adapter(name)
            session.conversation.adapters.pop(name, None)
            return
        case _ if action in ACTIONS:
            raise UsageError(f"expected {ACTIONS[action]}")
        case _:
            chosen = dict(parse_choice(word) for word in words)
    session.model.mixture(chosen, [])  # raises unless all can be applied
    session.conversation.adapters = chosen


def describe_adapters(session: Session) -> str:
    """One line per adapter: its name, its scale if it applies, its kind if it is loaded."""
    lines, chosen = [], session.conversation.adapters
    for info in session.model.adapters:
        scale = f" = {chosen[info.name]:g}" if info.name in chosen else ""
        known = f": {info.kind}, rank {info.rank}" if info.loaded else ""
        lines.append(f"{info.name}{scale}{known}")
    return "\n".join(lines) or "no adapters; /adapter add NAME REF adds one"


def parse_choice(word: str) -> tuple[str, float]:
    """Parse NAME or NAME=SCALE. Raises UsageError for a malformed scale."""
    name, equals, scale = word.partition("=")
    return name, parse_scale(scale, word) if equals else 1.0


def parse_scale(text: str, word: str = "") -> float:
    """Parse a scale. Raises UsageError with the word that contains it."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{word or text!r:.80}: invalid scale; expected a number, as in style=0.5"
        ) from None

"""Prompts without a chat template: of base models, which continue text, and of --raw."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.chat.conversation import media_of, text_of

if TYPE_CHECKING:
    from ostro.core.pipeline import ServedModel
    from ostro.entrypoints.cli.chat.conversation import Conversation
    from ostro.entrypoints.python.model import LocalModel


def report_base_model(model: ServedModel, args: argparse.Namespace) -> None:
    """Print a note if a model has no chat template.

    The header of its files states that, so the weights have not been read yet. Raises UsageError
    for options that need a template.
    """
    if model.template is not None or args.raw or args.adapters or args.adapter_folder:
        return  # an adapter may have a template
    media = any(part["type"] != "text" for part in args.attachments)
    check_plain(args.system, args.think, args.thinking_budget, media=media)
    turns = "" if args.input is not None else " Each message begins a new line of the text."
    print(
        f"{model.name} is a base model: it has no chat template and continues text.{turns} --raw "
        "does so without this note; --chat-template FILE makes it answer messages.",
        file=sys.stderr,
    )


def continues_text(model: LocalModel, conversation: Conversation, *, raw: bool) -> bool:
    """Whether the next answer continues plain text: with `raw`, and without a chat template."""
    return raw or not model.has_template(conversation.adapters)


def join_text(conversation: Conversation) -> str:
    """Return the text that messages make without a template.

    An answer continues its message; the message after it begins a new line. Raises UsageError for
    settings and media that need a template.
    """
    messages = conversation.messages
    media = any(media_of(message) for message in messages)
    check_plain(conversation.system, conversation.think, conversation.thinking_budget, media=media)
    text = ""
    for message in messages:
        text += "\n" if text and message["role"] == "user" else ""
        text += text_of(message)
    return text


def check_plain(
    system: str | None, think: bool | None, thinking_budget: int | None, *, media: bool
) -> None:
    """Raise UsageError for parts of a chat that plain text cannot have."""
    given = {
        "a system message": system,
        "a switch for reasoning": think is not None,
        "a budget of reasoning": thinking_budget is not None,
    }
    for part, used in {**given, "an image, audio or video": media}.items():
        if used:
            raise UsageError(
                f"{part} needs a chat template, and this prompt has none; remove it, or load a "
                "template with --chat-template FILE"
            )

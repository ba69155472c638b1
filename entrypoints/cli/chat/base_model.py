"""Models without a chat template: they continue text instead of answering messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ostro.core.errors import UsageError

if TYPE_CHECKING:
    from ostro.core.pipeline import ServedModel

MEDIA = ("image", "audio", "video")


def report_base_model(model: ServedModel, args: argparse.Namespace) -> None:
    """Print a note if a model has no chat template.

    The header of its files states that, so the weights have not been read yet. Raises UsageError
    for options that need a template.
    """
    if model.template is not None or args.raw or args.adapters or args.adapter_folder:
        return  # the template may be that of an adapter
    options = {"--system": args.system, "--think": args.think}
    options |= {f"--{kind}": getattr(args, kind) or None for kind in MEDIA}
    for option, value in options.items():
        if value is not None:
            raise UsageError(
                f"{option}: {model.name} is a base model without a chat template; load one with "
                "--chat-template FILE, or remove the option"
            )
    turns = "" if args.input is not None else "Each message is added to the text on a new line. "
    print(
        f"{model.name} is a base model without a chat template: it continues text. {turns}--raw "
        "does so without this note; --chat-template FILE makes it answer messages.",
        file=sys.stderr,
    )


def join_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that messages make without a template.

    An answer continues the message before it; a message after an answer begins a new line.
    """
    text = ""
    for message in messages:
        text += "\n" if text and message["role"] == "user" else ""
        text += message["content"]
    return text

"""The parser of a command: help in two tiers, examples, and the nearest name after a typo."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from ostro.core.errors import nearest


class Advanced(str):
    """The help of an option that `--help` omits and `--help-all` lists."""


class HelpFormatter(argparse.HelpFormatter):
    """Breaks lines between words only. On a narrow terminal it indents less."""

    def __init__(self, prog: str, **options: Any) -> None:
        self.narrow = shutil.get_terminal_size().columns < 60
        super().__init__(prog, **{"max_help_position": 8 if self.narrow else 24, **options})

    def _format_usage(self, *args: Any) -> str:
        if not self.narrow:
            return super()._format_usage(*args)
        columns, self._width = self._width, sys.maxsize
        text = super()._format_usage(*args).replace(" ...", "\xa0...")  # keeps "[INPUT ...]" whole
        self._width = columns
        lines = self._split_lines(text, columns - 4)
        return "\n    ".join(lines).replace("\xa0", " ") + "\n\n"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


def wrap_command(line: str, columns: int) -> str:
    """A command line, indented by 2, with a backslash at the end of each line but the last.

    Lines have at most this many columns, except for longer words; quoted text is one word.
    """
    lines = [" "]
    for word in shlex.split(line, posix=False):
        if len(lines[-1]) + len(word) + 3 > columns and lines[-1].strip():
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A command's parser. `--help` omits the options with `Advanced` help, `--help-all` lists all.

    examples: command lines for the end of the help.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **options})
        self.examples = tuple(examples)
        self.add_argument("--help-all", action=HelpAll, help="list all options and exit")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse a command. Unknown words are reported here, with the usage of the command.

        A list of positionals may have options in between, which argparse itself does not accept.
        A command that has a default for `given` gets the attributes that the words set there, one
        that has a default for `arguments` the words after `--`.
        """
        after: Sequence[str] = ()
        if "arguments" in self._defaults and "--" in args:
            args, after = args[: args.index("--")], args[args.index("--") + 1 :]
        given = self.given(args) if "given" in self._defaults else frozenset[str]()
        found, rest = super().parse_known_args(args, namespace)
        last = next((a for a in reversed(self._actions) if not a.option_strings), None)
        if rest and last and last.nargs in ("*", "+") and not any(w[:1] == "-" for w in rest):
            make = last.type if callable(last.type) else str
            setattr(found, last.dest, [*getattr(found, last.dest), *map(make, rest)])
            rest = []
        if rest:
            self.fail_unknown(rest)
        if given:
            found.given = given
        if after:
            found.arguments = list(after)
        return found, rest

    def given(self, args: Sequence[str] | None) -> frozenset[str]:
        """The attributes that command-line words set."""
        defaults = {action: action.default for action in self._actions}
        try:
            for action in self._actions:
                action.default = argparse.SUPPRESS
            return frozenset(vars(super().parse_known_args(args)[0]))
        finally:
            for action, default in defaults.items():
                action.default = default

    def fail_unknown(self, words: Sequence[str]) -> NoReturn:
        """Report the first unknown option, or else the first word that is too many."""
        word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        known = [name for action in self._actions for name in action.option_strings]
        self.error(f"unknown option {word}{nearest(word, known)}")

    def format_usage(self) -> str:
        return self.usage_formatter().format_help()

    def format_help(self) -> str:
        return self.help_text(everything=False)

    def help_text(self, everything: bool) -> str:
        """The help: of every option, or without the advanced ones."""
        advanced = [action for action in self._actions if isinstance(action.help, Advanced)]
        omitted = [] if everything else advanced
        formatter = self.usage_formatter()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(a for a in group._group_actions if a not in omitted)
            formatter.end_section()
        more = f"--help-all lists {len(omitted)} more options." if omitted else None
        formatter.add_text(more)
        formatter.add_text(self.epilog)
        columns = shutil.get_terminal_size().columns
        lines = "".join(f"{wrap_command(line, columns)}\n" for line in self.examples)
        return formatter.format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def usage_formatter(self) -> argparse.HelpFormatter:
        """A formatter that holds the usage: the positionals and the required options."""
        formatter = self.formatter_class(prog=f"{self.prog} [options]")
        shown = [each for each in self._actions if each.required or not each.option_strings]
        formatter.add_usage(self.usage, shown, [])
        return formatter


class HelpAll(argparse.Action):
    """The action of --help-all."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, 0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.help_text(everything=True), end="")
        parser.exit()

"""`ostro completion SHELL`: print a completion script for bash, zsh or fish.

A script holds the commands and options of this installation, with those of its plugins. References
complete to aliases, to models in the Hugging Face cache, and to files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

FILES = ("FILE", "DIR", "PATH", "FILE.svg", "INPUT")
REFERENCES = ("REF", "[NAME=]REF")
"""Metavars of values that complete to files, and to references."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """What a value completes to: words, references (which include files), or files."""

    words: tuple[str, ...] = ()
    reference: bool = False
    file: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option; `value` is None for a flag."""

    names: tuple[str, ...]
    help: str
    value: Value | None


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its options, and what its positionals complete to."""

    name: str
    help: str
    options: tuple[Option, ...]
    positional: Value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        'Print a completion script. bash, in ~/.bashrc: eval "$(ostro completion bash)". '
        'zsh, in ~/.zshrc after compinit: eval "$(ostro completion zsh)". '
        "fish: ostro completion fish > ~/.config/fish/completions/ostro.fish"
    )
    parser.add_argument("shell", choices=SCRIPTS, metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    print(SCRIPTS[args.shell](list(commands())), end="")
    return 0


def commands() -> Iterator[Command]:
    """The commands of this installation. A command of a broken plugin has no options."""
    from ostro.core.errors import PluginError
    from ostro.entrypoints.cli import build

    for name, text in subcommands(build(["--help"])[0]).items():
        try:
            top, _ = build([name])
        except PluginError:
            yield Command(name=name, help=text, options=(), positional=Value())
            continue
        (action,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
        actions = list(actions_of(action.choices[name]))
        options = {each.names: each for each in map(option, actions) if each.names}
        yield Command(
            name=name,
            help=text,
            options=tuple(options.values()),
            positional=merge(value(each) for each in actions if not each.option_strings),
        )


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, str]:
    """The subcommands of a parser with their help."""
    return {
        each.dest: each.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for each in action._choices_actions
    }


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions_of(each)


def option(action: argparse.Action) -> Option:
    text = (action.help or "").partition(" (default")[0]
    takes_value = action.nargs != 0
    return Option(
        names=tuple(action.option_strings), help=text, value=value(action) if takes_value else None
    )


def value(action: argparse.Action) -> Value:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return Value(
        words=tuple(map(str, action.choices or ())),
        reference=metavar in REFERENCES,
        file=metavar in FILES,
    )


def merge(values: Iterable[Value]) -> Value:
    """What several positionals complete to."""
    every = list(values)
    return Value(
        words=tuple(word for each in every for word in each.words),
        reference=any(each.reference for each in every),
        file=any(each.file for each in every),
    )


CACHED = """\
# The models in the Hugging Face cache, as org/name.
_ostro_cached() {
    local each
    for each in "${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"/models--*--*; do
        [ -d "$each" ] || continue
        each=${each##*/models--}
        printf '%s\\n' "${each%%--*}/${each#*--}"
    done
}
"""

BASH = """\
# Completion of ostro for bash.
{cached}
_ostro() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command= options= values= each
    COMPREPLY=()
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $each != -* ]]; then command=$each; break; fi
    done
    case $command in
{options}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
        return
    fi
    case "$command $previous" in
{values}
    esac
    if [[ $values == *"@file"* || $values == *"@reference"* ]]; then
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
    if [[ $values == *"@reference"* ]]; then values+=" {aliases} $(_ostro_cached)"; fi
    values=${{values//@file/}}
    COMPREPLY+=($(compgen -W "${{values//@reference/}}" -- "$word"))
}}
complete -F _ostro ostro
"""


def bash(found: Sequence[Command]) -> str:
    """The script for bash."""
    options = [f"        '') values={quote(' '.join(c.name for c in found))} ;;"]
    values = []
    for command in found:
        names = " ".join(name for each in command.options for name in each.names)
        after = marked(command.positional)
        options.append(f"        {command.name}) options={quote(names)} values={quote(after)} ;;")
        for each in command.options:
            if each.value is not None:
                patterns = "|".join(quote(f"{command.name} {name}") for name in each.names)
                values.append(f"        {patterns}) values={quote(marked(each.value))} ;;")
    return BASH.format(
        cached=CACHED,
        options="\n".join(options),
        values="\n".join(values),
        aliases=" ".join(alias_names()),
    )


def marked(value: Value) -> str:
    """The words of a value, and a marker for files or references."""
    words = [*value.words, *["@reference"] * value.reference, *["@file"] * value.file]
    return " ".join(words)


ZSH = """\
#compdef ostro
# Completion of ostro for zsh.
{cached}
_ostro_references() {{
    compadd -- {aliases} ${{(f)"$(setopt localoptions nonomatch; _ostro_cached)"}}
    _files
}}

_ostro() {{
    local -a commands
    local line state
    commands=(
{names}
    )
    _arguments -C '1:command:->command' '*::argument:->rest'
    case $state in
    command) _describe command commands ;;
    rest)
        case $words[1] in
{options}
        esac ;;
    esac
}}

if [ "$funcstack[1]" = _ostro ]; then _ostro "$@"; else compdef _ostro ostro; fi
"""


def zsh(found: Sequence[Command]) -> str:
    """The script for zsh."""
    cases = []
    for command in found:
        lines = [quote(spec) for each in command.options for spec in zsh_specs(each)]
        lines.append(quote("*:argument:" + zsh_action(command.positional)))
        joined = " \\\n                ".join(lines)
        cases.append(f"        {command.name}) _arguments -s \\\n                {joined} ;;")
    return ZSH.format(
        cached=CACHED,
        aliases=" ".join(alias_names()),
        names="\n".join(f"        {quote(f'{c.name}:{c.help}')}" for c in found),
        options="\n".join(cases),
    )


def zsh_specs(each: Option) -> Iterator[str]:
    """The arguments of `_arguments` for an option."""
    text = each.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    ending = "" if each.value is None else f":value:{zsh_action(each.value)}"
    for name in each.names:
        yield f"*{name}[{text}]{ending}"


def zsh_action(value: Value) -> str:
    if value.reference:
        return "_ostro_references"
    if value.words:
        return f"({' '.join(value.words)})"
    return "_files" if value.file else " "


FISH = """\
# Completion of ostro for fish.
function __ostro_references
    string split ' ' {aliases}
    set -l cache $HOME/.cache/huggingface/hub
    set -q HF_HOME; and set cache $HF_HOME/hub
    set -q HF_HUB_CACHE; and set cache $HF_HUB_CACHE
    for each in $cache/models--*--*
        string replace -- -- / (string replace -r '.*/models--' '' -- $each)
    end
end
complete -c ostro -f
"""


def fish(found: Sequence[Command]) -> str:
    """The script for fish."""
    lines = []
    for each in found:
        lines.append(
            f"complete -c ostro -n __fish_use_subcommand -a {each.name} -d {fish_quote(each.help)}"
        )
        within = f"complete -c ostro -n '__fish_seen_subcommand_from {each.name}'"
        if each.positional != Value():
            lines.append(f"{within} {fish_value(each.positional)}")
        for option in each.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            ending = "" if option.value is None else f" -r {fish_value(option.value)}"
            lines.append(f"{within} {names} -d {fish_quote(option.help)}{ending}")
    return FISH.format(aliases=fish_quote(" ".join(alias_names()))) + "\n".join(lines) + "\n"


def fish_value(value: Value) -> str:
    """The options of `complete` for a value."""
    words = " ".join([*value.words, *["(__ostro_references)"] * value.reference])
    files = "-F" if value.reference or value.file else "-f"
    return f"{files} -a {fish_quote(words)}" if words else files


def fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def alias_names() -> list[str]:
    from ostro.entrypoints.cli.hub_cache import aliases

    return sorted(aliases())


SCRIPTS: Mapping[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}

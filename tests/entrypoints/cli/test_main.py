"""The front door: it answers at once, says what is wrong in a line, and lets plugins in."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostro import __version__
from ostro.core import errors
from ostro.core.errors import AdapterNotFound, ModelNotFound, OstroError, UsageError
from ostro.entrypoints.cli import COMMANDS, build, inspect, limit_spinning, main, writes_unicode
from ostro.entrypoints.cli.chat.attachments import read_attachment

COMMAND = """
from ostro.core.hooks import hookimpl
from ostro.core.records import Command

@hookimpl
def ostro_commands():
    yield Command(name="greet", help="say good morning", parser="MODULE:declare", run="MODULE:run")

def declare(parser):
    parser.add_argument("who")

def run(args):
    print(f"good morning, {args.who}")
    return 3
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed plugin with a command; gives the file of its module."""
    module = f"greeting_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(COMMAND.replace("MODULE", module))
    info = tmp_path / "ostro_greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: ostro-greeting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ostro]\ngreeting = {module}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / f"{module}.py"
    sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--help"], 430),
        *(
            pytest.param(words, most, marks=pytest.mark.process)
            for words, most in (
                (["plugins"], 700),  # with the handlers of all routes
                (["run", "--help"], 430),
                (["models"], 430),
            )
        ),
    ],
)
def test_listing_imports_little_and_no_torch(apart, words: list[str], most: int) -> None:
    ran = apart(*words)
    assert ran.code == 0 and ran.out
    modules, heavy = ran.err.splitlines()[-2:]
    assert heavy == "imported:"
    assert int(modules.split()[0]) < most


def test_help_lists_every_command(ostro) -> None:
    ran = ostro("--help")
    assert ran.code == 0
    assert all(
        f"    {name}" in ran.out and text in " ".join(ran.out.split())
        for name, text in COMMANDS.items()
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(ostro, name: str) -> None:
    ran = ostro(name, "--help")
    assert ran.code == 0 and f"usage: ostro {name}" in ran.out


def test_the_version_is_printed(ostro) -> None:
    assert ostro("--version").out == f"ostro {__version__}\n"


@pytest.mark.parametrize("words", [[], ["sing"], ["plugins", "--sing"], ["pull"]])
def test_what_makes_no_sense_is_a_mistake(ostro, words: list[str]) -> None:
    ran = ostro(*words)
    assert ran.code == 2 and "error: " in ran.err and not ran.out


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OstroError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_one_line_and_its_exit_code(
    ostro, monkeypatch: pytest.MonkeyPatch, kind: type[OstroError]
) -> None:
    error = kind("the chair has three legs")

    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(inspect, "run", fail)
    ran = ostro("inspect", "x")
    assert (ran.code, ran.err) == (kind.exit_code, f"ostro: {error}\n")
    assert ran.code != 0
    with pytest.raises(kind):
        main(["inspect", "x", "--debug"])


def test_exit_codes_tell_kinds_apart() -> None:
    """A model and an adapter that are not found have the same code."""
    assert AdapterNotFound.exit_code == ModelNotFound.exit_code
    own = [kind for kind in KINDS if "exit_code" in vars(kind) and kind is not AdapterNotFound]
    codes = [kind.exit_code for kind in own]
    assert len(codes) == len(set(codes)) > 8


def test_our_own_mistakes_show_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "run", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "x"])


def test_threads_spin_for_a_bounded_time_unless_the_user_says_otherwise() -> None:
    chosen: list[dict[str, str]] = [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}]
    for environment in chosen:
        limit_spinning(environment)
    assert chosen == [
        {"GOMP_SPINCOUNT": "40000"},
        {"OMP_WAIT_POLICY": "active"},
        {"GOMP_SPINCOUNT": "7"},
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_output_that_an_encoding_lacks_is_replaced(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
    monkeypatch.setattr(inspect, "run", lambda args: print("ok \N{GRINNING FACE} \udcff!"))
    assert main(["inspect", "x"]) == 0
    face = "\N{GRINNING FACE}" if encoding == "utf-8" else "?"
    assert written.getvalue().decode(encoding) == f"ok {face} ?!\n"
    assert writes_unicode() is (encoding == "utf-8")


def test_piped_input_is_utf8_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(inspect, "run", lambda args: read.append(sys.stdin.read()))
    for encoding in ("ascii", "latin-1"):
        piped = io.TextIOWrapper(io.BytesIO("é \N{GRINNING FACE}".encode()), encoding)
        monkeypatch.setattr(sys, "stdin", piped)
        assert main(["inspect", "x"]) == 0
    assert read == ["é \N{GRINNING FACE}"] * 2


def test_ctrl_c_is_no_error(ostro, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "run", interrupt)
    assert ostro("inspect", "x") == type(ostro("--version"))(130, "", "")


def test_a_plugin_adds_a_command(ostro, wheel: Path) -> None:
    assert "say good morning" in ostro("--help").out
    ran = ostro("greet", "world")
    assert (ran.code, ran.out) == (3, "good morning, world\n")
    assert ostro("greet").code == 2


def test_a_broken_command_of_a_plugin_is_named(ostro, wheel: Path) -> None:
    wheel.write_text(wheel.read_text().replace('parser.add_argument("who")', "parser.sing()"))
    ran = ostro("greet", "world")
    assert ran.code == 7 and "'greet' failed to load" in ran.err and "AttributeError" in ran.err
    assert ostro("models").code == 0


def test_a_command_that_exits_while_it_loads_is_named(ostro, wheel: Path) -> None:
    wheel.write_text(wheel.read_text().replace('parser.add_argument("who")', "raise SystemExit(0)"))
    ran = ostro("greet", "world")
    assert ran.code == 7 and "plugin greeting (ostro-greeting 1.0)" in ran.err
    assert "complete" in ostro("completion", "bash").out


def test_a_command_of_ostro_itself_wins_over_that_of_a_plugin(ostro, wheel: Path) -> None:
    wheel.write_text(wheel.read_text().replace('name="greet"', 'name="serve"'))
    for words in (("--help",), ("completion", "bash"), ("serve", "--help")):
        ran = ostro(*words)
        assert ran.code == 0 and "say good morning" not in ran.out
    assert "unknown command 'sreve'; nearest: serve" in ostro("sreve").err
    ran = ostro("plugins")
    [line] = (line for line in ran.out.splitlines() if line.startswith("greeting"))
    assert ran.code == 1 and "conflict" in line and "'serve' is one of ostro itself" in line


def test_a_command_of_two_plugins_names_both(ostro, wheel: Path) -> None:
    info = wheel.parent / "ostro_other-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: ostro-other\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[ostro]\nother = {wheel.stem}_other\n")
    wheel.with_name(f"{wheel.stem}_other.py").write_text(wheel.read_text())
    ran = ostro("greet", "world")
    assert ran.code == 7 and "greeting (ostro-greeting 1.0) and other (ostro-other 2.0)" in ran.err
    assert ostro("--help").code == 0
    sys.modules.pop(f"{wheel.stem}_other")


def escaped(text: str) -> str:
    """UTF-8 text as Python reads it from the command line in the C locale."""
    return text.encode().decode("ascii", "surrogateescape")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-i"),
        ("run", "--system"),
        ("run", "--stop"),
        ("run", "--name"),
        ("draw", "-o", "a.png"),
        ("speak", "-o", "a.wav"),
        ("transcribe", "a.wav", "--prompt"),
        ("embed", "--prompt"),
    ],
)
def test_texts_of_arguments_are_utf8_in_every_locale(words: tuple[str, ...]) -> None:
    parser, _ = build(words)
    found = vars(parser.parse_args([*words, escaped("Wie spät?")]))
    assert "Wie spät?" in found.values() or ["Wie spät?"] in found.values()
    with pytest.raises(UsageError, match=r"the argument b'sp\\xe4t' is not UTF-8 text"):
        parser.parse_args([*words, "sp\udce4t"])


def test_positional_texts_are_utf8_in_every_locale(ostro, tiny: str) -> None:
    options = ("run", "-m", tiny, "--temperature", "0", "-n", "4")
    expected = ostro(*options, "Wie spät ist es?")
    assert expected.code == 0
    assert ostro(*options, escaped("Wie spät ist es?")).out == expected.out
    assert (
        ostro("embed", "-m", tiny, escaped("schön")).out == ostro("embed", "-m", tiny, "schön").out
    )
    refused = ostro(*options, "sp\udce4t ist es")
    assert refused.code == 2 and "b'sp\\xe4t ist es' is not UTF-8 text" in refused.err


@pytest.mark.parametrize(("name", "shown"), [("ö.txt", "ö.txt"), ("\udce4.txt", "\ufffd.txt")])
def test_names_of_attached_files_are_text(tmp_path: Path, name: str, shown: str) -> None:
    file = tmp_path / name
    file.write_text("hello")
    assert read_attachment(str(file)) == {"type": "text", "text": f"File {shown}:\n\nhello"}

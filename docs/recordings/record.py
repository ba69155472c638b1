"""Record terminals for the documentation: real commands in tmux, their screens as SVG images.

    python docs/recordings/record.py                  # all, into docs/recordings
    python docs/recordings/record.py chat --into out  # one, into another folder

`make recordings` runs it. The answers are those of the starter model that is installed.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
SHELL, CHAT = r"\n\$\s*\Z", r"\n>\s*\Z"
"""The empty prompts of the shell and of the chat, at the end of a screen."""

SECONDS = 300
"""The longest time that a step may take; a start on a busy machine takes most of a minute."""

FORMAT = re.sub(r"<!--.*?-->\s*|@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's template of images, without comments and the fonts that it loads from the network."""


@dataclass(frozen=True)
class Recording:
    """A terminal session of `columns` x `rows`.

    steps: lines that are typed, each with a pattern that the screen matches once it is answered.
    """

    title: str
    steps: Sequence[tuple[str, str]]
    columns: int = 92
    rows: int = 40


RECORDINGS: Mapping[str, Recording] = {
    "run": Recording(
        "Answers, from prompts and pipes",
        (
            ('ostro run -i "What is 27 + 15?" --temperature 0', f"(?s)42.*{SHELL}"),
            ('echo "What is 12 * 12?" | ostro run --temperature 0', f"(?s)144.*{SHELL}"),
        ),
    ),
    "chat": Recording(
        "A chat with the starter model",
        (
            ("ostro run --temperature 0", f"(?s)/help for commands.*{CHAT}"),
            ("What is 27 + 15?", f"(?s)42.*{CHAT}"),
            ("/retry", f"(?s)/retry.*42.*{CHAT}"),
            ("/retyr", f"(?s)unknown command /retyr.*{CHAT}"),
            ("/stats", f"(?s)/stats.*token.*{CHAT}"),
        ),
    ),
    "fit": Recording(
        "Formats that fit in memory",
        (("ostro fit", f"(?s)ostro fit\\n.*{SHELL}"),),
        columns=96,
        rows=64,
    ),
    "list": Recording(
        "Aliases of models of the hub",
        (("ostro list --aliases", f"(?s)--aliases\\n.*{SHELL}"),),
        columns=110,
    ),
}


class Terminal:
    """A shell in tmux, in an empty folder, with a home of its own."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        home = folder / "home"
        home.mkdir()
        self.socket = str(folder / "tmux")
        size = ("-x", str(recording.columns), "-y", str(recording.rows))
        env = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PS1": "$ ",
            "TERM": "tmux-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
        }
        shell = ["env", "-i", "-C", str(home), *(f"{key}={value}" for key, value in env.items())]
        self("new-session", "-d", *size, shlex.join([*shell, "bash", "--norc", "--noprofile"]))
        self.wait(r"\A\$\s*\Z")
        self.type(f'ostro() {{ {shlex.quote(sys.executable)} -m ostro "$@"; }}; clear')
        self.wait(r"\A\$\s*\Z")

    def __call__(self, *words: str) -> str:
        command = ["tmux", "-S", self.socket, "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def type(self, line: str) -> None:
        self("send-keys", "-l", line)
        self("send-keys", "Enter")

    def wait(self, pattern: str) -> None:
        """Wait until the screen matches. Raises TimeoutError with the screen."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, screen := self("capture-pane", "-p")):
            if time.monotonic() > end:
                raise TimeoutError(f"no {pattern!r} after {SECONDS} s in:\n{screen}")
            time.sleep(0.1)

    def screen(self) -> str:
        """The screen with its colours."""
        return self("capture-pane", "-e", "-p").rstrip()

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], check=False)


def record(recording: Recording) -> str:
    """The screen after the last step, with escape sequences."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        terminal = Terminal(Path(folder), recording)
        try:
            for line, pattern in recording.steps:
                terminal.type(line)
                terminal.wait(pattern)
            return terminal.screen()
        finally:
            terminal.close()


def draw(name: str, recording: Recording, screen: str) -> str:
    """A screen as an SVG image."""
    console = Console(
        record=True,
        width=recording.columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text.from_ansi(screen), highlight=False)
    image = console.export_svg(
        title=recording.title, theme=MONOKAI, code_format=FORMAT, unique_id=name
    )
    return "\n".join(line.rstrip() for line in image.splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *RECORDINGS], metavar="NAME")
    parser.add_argument("--into", type=Path, default=HERE, metavar="FOLDER")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    for name in args.names or RECORDINGS:
        recording = RECORDINGS[name]
        file = args.into / f"{name}.svg"
        file.write_text(draw(name, recording, record(recording)))
        print(f"{file} ({file.stat().st_size / 1000:.0f} kB)", flush=True)


if __name__ == "__main__":
    main()

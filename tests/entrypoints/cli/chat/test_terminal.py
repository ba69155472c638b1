"""The chat of the starter model in tmux, as a user drives it: keys in, the screen out."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny.model import TEMPLATE, make_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

READY = "/help for commands"
PROMPT = r"\n>\s*\Z"
"""An empty prompt at the end of the screen."""


class Tmux:
    """A program in a terminal of tmux."""

    def __init__(self, folder: Path, words: list[str], env: dict[str, str]) -> None:
        self.socket = str(folder / "tmux")
        env = {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "tmux-256color", **env}
        program = ["env", *(f"{name}={value}" for name, value in env.items())]
        program += [sys.executable, "-m", "ostro", "run", *words]
        # The shell prints the exit code and keeps the screen.
        line = f"{shlex.join(program)}; echo exit code $?; sleep 1000"
        self("new-session", "-d", "-x", "80", "-y", "24", line)
        self.wait(READY, 200)
        self.wait(PROMPT)

    def __call__(self, *words: str, input: str | None = None) -> str:
        ran = subprocess.run(
            ["tmux", "-S", self.socket, "-f", "/dev/null", *words],
            input=input,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout

    def screen(self, *options: str) -> str:
        """The lines of the terminal, those that scrolled away included."""
        return self("capture-pane", "-p", "-S", "-2000", *options)

    def wait(self, text: str, seconds: float = 60) -> str:
        """Wait until the screen has a text that matches a pattern; returns the screen."""
        end = time.monotonic() + seconds
        while not re.search(text, screen := self.screen()):
            assert time.monotonic() < end, f"no {text!r} in:\n{screen}"
            time.sleep(0.05)
        return screen

    def type(self, *keys: str) -> None:
        """Press keys; text that is not the name of a key is typed."""
        self("send-keys", *keys)

    def paste(self, text: str) -> None:
        self("load-buffer", "-", input=text)
        self("paste-buffer", "-p")

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], check=False)


Open = Callable[..., Tmux]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Start `ostro run` in a terminal."""
    opened: list[Tmux] = []

    def start(*words: str, **env: str) -> Tmux:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        opened.append(Tmux(folder, list(words), {"XDG_STATE_HOME": str(tmp_path), **env}))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_conversation(terminal: Open, tmp_path: Path) -> None:
    """Arrows, history, several lines, a paste, a resize, commands, saving."""
    tmux, file = terminal("--temperature", "0", "-n", "100"), tmp_path / "talk.json"
    tmux.type("What is 27 + 5?", "Left", "Left", "1", "Enter")  # What is 27 + 15?
    assert "^[[D" not in tmux.wait("(?s)42.*" + PROMPT)
    tmux.type("/bogus", "Enter")
    tmux.wait("unknown command /bogus")
    tmux.type("/retry", "Enter")
    tmux.wait("(?s)42.*/retry.*42.*" + PROMPT)
    tmux("resize-window", "-x", "50", "-y", "15")
    tmux.type('"""What is', "Enter", "12 + 12?", "M-Enter", '"""', "Enter")
    tmux.wait("(?s)12 \\+ 12.*24.*" + PROMPT)
    tmux("resize-window", "-x", "100", "-y", "30")
    tmux.type(f"/save {file}", "Enter")
    tmux.wait(r"saved 4 messages")
    messages = json.loads(file.read_text())["messages"]
    assert messages[0]["content"] == "What is 27 + 15?" and "42" in messages[1]["content"]
    assert messages[2]["content"] == "What is\n12 + 12?"
    tmux.type("/clear", "Enter", "/set max_tokens 1", "Enter")
    tmux.wait("max_tokens = 1")
    tmux.paste("".join(f"{i}\n" for i in range(200)))
    tmux.type("Enter", f"/save {tmp_path / 'paste.json'}", "Enter")
    tmux.wait("saved 2 messages", 30)
    pasted = json.loads((tmp_path / "paste.json").read_text())["messages"][0]["content"]
    assert pasted == "\n".join(map(str, range(200)))
    tmux.type("/exi", "Tab", "Enter")
    tmux.wait("exit code 0")
    assert stat.S_IMODE((tmp_path / "ostro/history").stat().st_mode) == 0o600


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_and_an_earlier_history(
    terminal: Open, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "ostro").mkdir()
    (tmp_path / "ostro/history").write_text("\n# now\n+What is 27 + 15?\n")
    tmux = terminal("--temperature", "0", **env)
    if env.get("TERM") == "dumb":
        tmux.type("What is 27 + 15?", "Enter")
    else:
        tmux.type("Up", "Enter")
    tmux.wait("(?s)42.*" + PROMPT)
    assert not re.search(r"\x1b\[(3[0-7]|9[0-7]|38|48)", tmux.screen("-e").partition("> ")[2])
    tmux.type("C-d")
    tmux.wait("exit code 0")


def test_ctrl_c_stops_the_answer_and_twice_leaves(terminal: Open, tmp_path: Path) -> None:
    """The terminal sends the signal to the whole group, the process that renders included."""
    folder = make_model(tmp_path / "m", max_position_embeddings=200_000, eos_token_id=None)
    # Without an end-of-text token the answers are long.
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    words = ("-m", str(folder), "--temperature", "0", "-n", "199000", "--max-seqs", "1")
    tmux = terminal(*words, "--plain")
    for count in (1, 2):
        tmux.type("hello", "Enter")
        tmux.wait(rf"(?s)(> hello\n.*?\S{{3}}.*?){{{count}}}")
        tmux.type("C-c")
        tmux.wait(PROMPT)
    tmux.type("/stats", "Enter")
    tmux.wait("ended by interrupt")
    tmux.type("C-c")
    tmux.wait("Ctrl-C again")
    tmux.type("C-c")
    screen = tmux.wait("exit code 0")
    assert "Traceback" not in screen and "leak" not in screen

"""Coding agents and chat programs against a server whose model follows a script.

    python tests/peers/agents.py [--template FILE] [--keep FOLDER] [--shapes FOLDER] [PROGRAM ...]

`environments.py` installs them: `agents`, `agents-aider` and so on. Each one runs with an empty
home in an empty folder. The model calls a tool of the program at its first request, in the
notation of the chat template, and answers with a text at the next one. The table says whether both
turns were done, whether the program executed the call, and how many tokens of the second request
begin it as the first request and its answer do: those that a prefix cache has. Its tokens are
bytes. With --keep, each request and response is a file in the folder. These contain the prompts of
vendors: do not commit them. With --shapes, the folder gets the shapes of the requests, with texts
of our own, for `tests/entrypoints/api/agents`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from agents_programs import PROGRAMS, Place, Program
from agents_server import ANSWER, MADE, Rig, scripted
from agents_shapes import conversation, other, save

JSON = Path(__file__).parents[1] / "echo/templates/json.jinja"
PATIENCE = 180.0
"""Seconds that a program has."""
TIMED_OUT = 124
"""The exit status of a program that had no time left."""
OFFLINE = {"NO_PROXY": "*", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"}
HEAD = (
    "| program | version | wire | two turns | call executed | second request: tokens in common | "
    "ignored | refused |\n|---|---|---|---|---|---|---|---|"
)


@dataclass
class Outcome:
    """What a program did."""

    program: Program
    done: bool
    executed: bool
    shared: tuple[int, int] | None
    ignored: list[str]
    refused: list[str]

    @property
    def row(self) -> str:
        """The row of the table."""
        common = "-"
        if self.shared:
            common = f"{self.shared[0]:,} of {self.shared[1]:,}"
        program = self.program
        cells = [program.name, program.version, program.wire, yes(self.done), yes(self.executed)]
        cells += [common, ", ".join(self.ignored) or "-", "; ".join(self.refused) or "-"]
        return f"| {' | '.join(cells)} |"


def yes(value: bool) -> str:
    return "yes" if value else "no"


def run(program: Program, place: Place, log: Path) -> tuple[int, str]:
    """Run a program. Return its exit status and what it printed, also to a file."""
    program.setup(place)
    status = 0
    try:
        for command in program.commands(place):
            status = status or execute(command, program.environment(place), place, log)
    finally:
        end_all(place)
    return status, log.read_text(errors="replace")


def execute(command: Sequence[str], variables: Mapping[str, str], place: Place, log: Path) -> int:
    """Run a command in the working folder, without the variables of this process."""
    path = f"{Path(command[0]).parent}:/usr/local/bin:/usr/bin:/bin"
    own = {"PATH": path, "HOME": str(place.home), "TMPDIR": str(place.temporary)}
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            cwd=place.work,
            env={**own, **OFFLINE, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            process.kill()
            process.wait()


def end_all(place: Place) -> None:
    """End what a program has started and left running: the processes that have its home."""
    mark = f"HOME={place.home}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0"):
                os.kill(int(file.parent.name), signal.SIGKILL)
        except OSError:  # it has ended, or belongs to another user
            continue


def attempt(program: Program, rig: Rig, keep: Path) -> Outcome:
    """Let a program make a file, and keep what it sent and printed in a folder."""
    rig.follow(program.call)
    keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folders = [Path(folder, name) for name in ("home", "work", "temporary")]
        for each in folders:
            each.mkdir()
        place = Place(rig.running.url, *folders)
        status, printed = run(program, place, keep / "output.txt")
        executed = (place.work / MADE).exists()
    exchanges = list(rig.exchanges)
    for number, exchange in enumerate(exchanges):
        exchange.save(keep / f"{number:02}.json")
    turns = len(rig.turns(program.call))
    said = program.turns == 1 or ANSWER in printed
    return Outcome(
        program=program,
        done=status == 0 and turns >= program.turns and said,
        executed=executed,
        shared=rig.shared(program.call),
        ignored=list(dict.fromkeys(each.ignored for each in exchanges if each.ignored)),
        refused=[f"{e.method} {e.path}: {e.status}" for e in exchanges if e.status >= 400],
    )


def save_shapes(file: Path, program: Program, rig: Rig) -> None:
    """Write the shapes of what a program has sent."""
    turns = rig.conversation(program.call)
    if len(turns) < program.turns:
        print(f"{program.name}: no shapes, for lack of a conversation", file=sys.stderr)
        return
    found = conversation(program.wire, program.call, turns)
    size = len(turns[0].sent)
    beside = [each for each in rig.exchanges if each not in turns and len(each.sent) < size]
    shapes = [other(each) for each in beside]
    found["others"] = [each for number, each in enumerate(shapes) if each not in shapes[:number]]
    save(file, program.name, program.version, found)


def main() -> int:
    names = list(dict.fromkeys(program.name for program in PROGRAMS))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--template", type=Path, default=JSON, help="a chat template")
    parser.add_argument("--keep", type=Path, help="folder for what the programs sent and printed")
    parser.add_argument("--shapes", type=Path, help="folder for the shapes of the requests")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"of {', '.join(names)}")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"no such program: {', '.join(sorted(unknown))}; --help lists all")
    if args.keep and args.keep.exists():
        parser.error(f"--keep {args.keep}: the folder exists; name a new one")
    print(HEAD, flush=True)
    done = True
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted(args.template.read_text()) as rig,
    ):
        for program in PROGRAMS:
            if args.names and program.name not in args.names:
                continue
            name = f"{program.name}-{program.wire}".replace(", ", "-").replace(" ", "-")
            try:
                outcome = attempt(program, rig, (args.keep or Path(folder)) / name)
            except FileNotFoundError as error:
                print(error, file=sys.stderr)
                done = False
                continue
            if args.shapes:
                args.shapes.mkdir(parents=True, exist_ok=True)
                save_shapes(args.shapes / f"{program.name}.json", program, rig)
            done &= outcome.done and outcome.executed
            print(outcome.row, flush=True)
    return int(not done)


if __name__ == "__main__":
    sys.exit(main())

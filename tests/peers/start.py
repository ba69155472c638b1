"""Compare the time from the start of a process to its first token, and its memory, with peers.

    python tests/peers/start.py FILE.gguf [--runs 5] [--threads N] [--only ostro,llama_cpp]

Each run is a new process: `ostro run -i`, and a few lines of Python for llama-cpp-python and
mistralrs in their environments (`environments.py`). The engines take turns, so that other load of
the machine affects all of them equally; the first round warms the caches of files and kernels and
is not counted. The tables are medians: seconds to the first token, CPU seconds of the process and
its children, resident memory after the first token (all, and anonymous: without pages of files),
then the stages of one start of ostro, and `ostro serve` until it listens and until it is ready.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from statistics import median

from environments import default_root, python_of

PROMPT = "Name a color."

LLAMA_CPP = """
import sys, time
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=2048, n_threads=int(sys.argv[2]), verbose=False)
text = model.create_completion(sys.argv[3], max_tokens=1)["choices"][0]["text"]
print("first token", text, flush=True)
time.sleep(60)
"""

MISTRALRS = """
import pathlib, sys, time
from mistralrs import CompletionRequest, Runner, Which
file = pathlib.Path(sys.argv[1])
runner = Runner(which=Which.GGUF(str(file.parent), file.name), max_seqs=1)
request = CompletionRequest(prompt=sys.argv[3], model="default", max_tokens=1)
print("first token", runner.send_completion_request(request).choices[0].text, flush=True)
time.sleep(60)
"""

STAGES = """
import sys, time
began, file, threads, prompt = float(sys.argv[1]), *sys.argv[2:]
stage, since = "start the interpreter", began
def enter(name):
    global stage, since
    if name == stage:
        return
    now, status = time.monotonic(), open("/proc/self/status").read()
    memory = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    print(f"{stage}\\t{now - since:.3f}\\t{memory / 1e6:.0f}", flush=True)
    stage, since = name, now
enter("import torch")
from ostro.entrypoints.progress import loading
with loading():
    import torch
    enter("import ostro")
    import ostro.core.engine.startup.start
    from ostro.entrypoints.python.load import PluginManager, find_model, settings_of
    from ostro.entrypoints.python.model import LocalModel
    enter("find plugins, header, tokenizer")
    settings, plugins = settings_of({"reference": file, "threads": int(threads)}), PluginManager()
    plugins.load(settings)
    found = find_model(settings, plugins)
    enter("plan")
    model = LocalModel(found, plugins, lambda name, done, total: enter(name))
enter("first token")
next(model.stream([{"role": "user", "content": prompt}], max_tokens=1))
enter("")
"""


class Child:
    """A process that is killed after its first token."""

    def __init__(self, *words: str) -> None:
        self.began, quiet = time.monotonic(), subprocess.DEVNULL
        self.process = subprocess.Popen(words, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)

    def until_output(self, mark: bytes) -> float:
        """Seconds from the start until the output contains `mark`, or anything if it is empty."""
        assert self.process.stdout is not None
        seen = b""
        while not seen or mark not in seen:
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError("ended without a token")
            seen += piece
        return time.monotonic() - self.began

    def memory(self) -> tuple[float, float]:
        """Resident memory now, all and anonymous, in MB."""
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        )
        found = [int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon")]
        return found[0], found[1]

    def cpu_seconds(self, end: int = signal.SIGKILL) -> float:
        """End the process; return the CPU seconds of it and of the children it waited for."""
        self.process.send_signal(end)
        _, _, usage = os.wait4(self.process.pid, 0)
        return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("file", type=Path)
    add("--runs", type=int, default=5)
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--only", help="engines with commas, ostro among them")
    add("--root", type=Path, default=default_root(), help="where environments.py put the peers")
    args = parser.parse_args()
    # As an installed package: compiled Python files are kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        compare(args)
        stages(args)
        serve(args)
    return 0


def compare(args: argparse.Namespace) -> None:
    """Print the table of the engines."""
    words = [str(args.file), str(args.threads), PROMPT]
    commands: dict[str, list[str]] = {
        "ostro": [*ostro(args, "run"), "-i", PROMPT, "-n", "32"],
        "llama_cpp": [str(python_of(args.root, "llama_cpp")), "-c", LLAMA_CPP, *words],
        "mistralrs": [str(python_of(args.root, "mistralrs")), "-c", MISTRALRS, *words],
    }
    wanted = args.only.split(",") if args.only else list(commands)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in wanted}
    for turn in range(args.runs + 1):
        for name in list(found):
            try:
                child = Child(*commands[name])
                # `ostro run` prints the answer alone, token by token.
                seconds = child.until_output(b"" if name == "ostro" else b"first token")
                memory = child.memory()
                figures = (seconds, child.cpu_seconds(), *memory)
            except (OSError, RuntimeError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                del found[name]
                continue
            if turn:
                found[name].append(figures)
    print(f"{'':12} first token   CPU    RSS  anonymous")
    for name, rows in found.items():
        seconds, cpu, resident, anonymous = (median(column) for column in zip(*rows, strict=True))
        print(f"{name:12} {seconds:9.2f} s {cpu:5.2f} s {resident:4.0f} MB {anonymous:6.0f} MB")


def ostro(args: argparse.Namespace, command: str) -> list[str]:
    """The words of an ostro command for the model."""
    threads = ["--threads", str(args.threads)]
    return [sys.executable, "-m", "ostro", command, "-m", str(args.file), *threads]


def stages(args: argparse.Namespace) -> None:
    """Print the stages of one start of ostro, with the memory at their ends."""
    words = [str(time.monotonic()), str(args.file), str(args.threads), PROMPT]
    ran = subprocess.run(
        [sys.executable, "-c", STAGES, *words], capture_output=True, text=True, check=True
    )
    print("\nstage of ostro                       time       RSS")
    for line in ran.stdout.splitlines():
        stage, seconds, memory = line.split("\t")
        print(f"{stage:32} {float(seconds):7.2f} s {memory:>6} MB")


def serve(args: argparse.Namespace) -> None:
    """Print the seconds until a server listens, and until it is ready."""
    listening, ready = [], []
    for _ in range(args.runs):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        child = Child(*ostro(args, "serve"), "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        listening.append(until_answer(f"{url}/health") - child.began)
        ready.append(until_answer(f"{url}/ready") - child.began)
        child.cpu_seconds(signal.SIGTERM)
    print(f"\nostro serve: listens after {median(listening):.2f} s, ready {median(ready):.2f} s")


def until_answer(url: str, seconds: float = 300) -> float:
    """The time when a GET first succeeds. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not answers(url):
        if time.monotonic() > end:
            raise TimeoutError(f"{url} did not answer within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic()


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with closing(urllib.request.urlopen(url, timeout=60)) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())

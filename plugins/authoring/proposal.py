"""Generate a plugin from a reference: a record, working at once if possible, and a model draft."""

from __future__ import annotations

from collections.abc import Iterator

from ostro.plugins.authoring.difference import differences
from ostro.plugins.authoring.project import Project
from ostro.plugins.authoring.reference import LIBRARY, Leaf, Reference, of_library
from ostro.plugins.authoring.shape import shape_of
from ostro.plugins.authoring.skeleton import Skeleton, indent

OWN = (
    'config=f"{__name__}.model:Config",',
    'model=f"{__name__}.model:Model",',
    'names=f"{__name__}.model:names",',
)
MUTANTS = 'mutants=f"{__name__}.mutants:mutants",'


def propose(project: Project, reference: Reference) -> dict[str, str]:
    """The texts of a plugin for the reference, by path."""
    found = differences(reference, of_library("LlamaForCausalLM"))
    leaves, shape = list(reference.leaves()), shape_of(reference)
    skeleton = Skeleton(reference.file.name, shape, found, leaves)
    body = None if skeleton.finished else body_of(reference)
    values = {
        **skeleton.parts(),
        "cls": reference.cls,
        "origin": reference.origin,
        "file": reference.file.name,
        "tiny": indent(f'"{name}": {value!r},' for name, value in shape.tiny.items()),
        "record": indent(record(reference, body), 8),
        "served": served(skeleton, body),
        "modules": "\n".join(row(leaf, skeleton.ours[leaf.path]) for leaf in leaves),
        "differences": "\n".join(f"| {d.span} | {d.what} |" for d in found) or "| | nothing |",
    }
    return project.files("proposal", **values)


def body_of(reference: Reference) -> str | None:
    """The import string of the class as a body; None if it cannot be one.

    A body needs transformers' attention interface, no Conv1D and no ALiBi.
    """
    text = reference.text
    goes = "ALL_ATTENTION_FUNCTIONS" in text and reference.config_class is not None
    plain = "Conv1D" not in text and "alibi" not in text.lower()
    return f"{LIBRARY}:{reference.cls}" if reference.library and goes and plain else None


def record(reference: Reference, body: str | None) -> list[str]:
    """The lines of the record that define config, model and conformance."""
    lines = list(OWN)
    if body is not None:
        lines = [
            "# TODO finish model.py, which is faster, and put these in the place of the next two:",
            *(f"# {line}" for line in OWN),
            f'config="{LIBRARY}:{reference.config_class}",',
            f'model="{body}",',
        ]
    tested = (f"    {line}" for line in conformance(reference, body))
    return [*lines, "conformance=Conformance(", *tested, "),"]


def conformance(reference: Reference, body: str | None) -> Iterator[str]:
    """The lines that define tiny config, reference and mutants."""
    yield "tiny=TINY,"
    if reference.library:
        yield f'reference="{LIBRARY}:{reference.cls}",'
    else:
        yield "# TODO reference=..., the model as code of your own or logits that it once gave; the"
        yield f"# code that came with the checkpoint, {reference.file.name}, is never run"
    if body is None:
        yield MUTANTS
    else:
        yield f"# TODO with model.py: {MUTANTS}"


def served(skeleton: Skeleton, body: str | None) -> str:
    """The sentences of the README about what works already."""
    if skeleton.finished:
        return "Its source does what Llama's does, so it works as it is: `model.py` is finished."
    if body is not None:
        return (
            f"It works at once: `{body}` is its body, with ostro's linears, cache and scheduler.\n"
            "`model.py` is the beginning of a model of its own, which is faster."
        )
    return "`model.py` is the beginning of its model; what is left to do is marked TODO there."


def row(leaf: Leaf, ours: str | None) -> str:
    return f"| `{leaf.path}` | `{leaf.kind}` | {leaf.line} | {f'`{ours}`' if ours else 'TODO'} |"

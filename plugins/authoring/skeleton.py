"""Generate the parts of a model.py from a parsed reference, with TODO comments for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap

from ostro.plugins.authoring.difference import Difference
from ostro.plugins.authoring.reference import Leaf
from ostro.plugins.authoring.roles import FUSED, GATES, LAYER, role
from ostro.plugins.authoring.shape import Shape

WIDTH = 100
NORMS = (f"{LAYER}.input_layernorm", f"{LAYER}.post_attention_layernorm")
PROJECTIONS = tuple(f"{LAYER}.self_attn.{name}_proj" for name in "qkvo")


@dataclass(frozen=True)
class Skeleton:
    """The inputs of a model.py for the reference in `file`, and its generated parts."""

    file: str
    shape: Shape
    differences: Sequence[Difference]
    leaves: Sequence[Leaf]

    @cached_property
    def gated(self) -> bool:
        return any(leaf.path.rpartition(".")[2] in GATES for leaf in self.leaves)

    @cached_property
    def ours(self) -> Mapping[str, str | None]:
        """Paths in Llama's module tree by the reference's paths; None if unknown."""
        return {leaf.path: role(leaf.path, gated=self.gated) for leaf in self.leaves}

    @cached_property
    def by_role(self) -> Mapping[str, Leaf]:
        return {ours: leaf for leaf in self.leaves if (ours := self.ours[leaf.path]) is not None}

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the reference is Llama with other names."""
        return not (self.differences or self.shape.pending or self.shape.windowed) and all(
            self.ours.values()
        )

    def parts(self) -> dict[str, str]:
        """The values of the template's placeholders."""
        block = [*self.todo("block"), *self.norms()]
        return {
            "imports": "\n".join(self.imports()),
            "constants": "".join(f"{line}\n" for line in self.constants()),
            "bases": "config.WindowConfig, llama.Config" if self.shape.windowed else "llama.Config",
            "fields": "".join(f"\n{indent(part)}\n" for part in self.fields()),
            "block": indent(block) + "\n\n" if block else "",
            "attention": indent([*self.todo("attention", 8), *self.attention()], 8),
            "feed_forward": indent([*self.todo("feed_forward", 8), *self.feed_forward()], 8),
            "model": indent([*self.todo("model"), ""]) if self.todo("model") else "",
            "names": indent(self.names()),
        }

    def todo(self, topic: str, by: int = 4) -> list[str]:
        """The TODO comments of a topic, one for each class or function of the reference."""
        lines: dict[str, list[str]] = {}
        for difference in self.differences:
            if difference.topic == topic:
                lines.setdefault(difference.what, []).append(difference.span)
        marks = (f"{self.file}:{', '.join(spans)}: {what}" for what, spans in lines.items())
        return [line for mark in marks for line in comment(mark, by)]

    def imports(self) -> Iterator[str]:
        shape, renames = self.shape, bool(self.shape.renamed)
        if renames:
            yield "from collections.abc import Mapping, Sequence"
        yield "from dataclasses import dataclass"
        if renames or shape.pending:
            yield f"from typing import Any{', Self' if renames else ''}"
        modules = ["config"] * shape.windowed + ["errors"] * bool(shape.pending) + ["nn"]
        yield ""
        yield f"from ostro import {', '.join(['Names', *['Pair'] * bool(self.pairs), *modules])}"
        yield "from ostro.trunks import llama"

    def constants(self) -> Iterator[str]:
        shape = self.shape
        if self.pairs or shape.renamed or shape.pending:
            yield ""
        if self.pairs:
            stem = self.stem
            yield from (f'LAYER = "{LAYER}"', *[f'THEIRS = "{stem}"'] * (stem != LAYER))
            yield from ("PAIRS = (", *(pair(*each, stem) for each in self.pairs), ")")
        if shape.renamed:
            yield from ("RENAMED = {", *(f'    "{a}": "{b}",' for a, b in shape.renamed.items()))
            yield from ("}", '"""What config.json calls otherwise: theirs by ours."""')
        if shape.pending:
            yield "# TODO use each of these fields in the model, then take it out of the list"
            yield "PENDING: dict[str, Any] = {"
            yield from (f'    "{name}": {default},' for name, default in shape.pending.items())
            yield "}"
        yield from ("", "")

    def fields(self) -> Iterator[list[str]]:
        """The lines of the fields, and of the methods that rename and reject fields."""
        shape = self.shape
        if shape.new:
            defaults = [f" = {each.default}" if each.default else "" for each in shape.new]
            named = zip(shape.new, defaults, strict=True)
            yield [f"{each.name}: {each.annotation}{default}" for each, default in named]
        if shape.renamed:
            yield [
                "@classmethod",
                "def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:",
                "    renamed = {a: raw[b] for a, b in RENAMED.items() if raw.get(b) is not None}",
                "    return super().from_hf({**raw, **renamed}, allow=(*allow, *RENAMED.values()))",
            ]
        if shape.pending:
            yield [
                "def check(self) -> None:",
                "    super().check()",
                "    for name, value in PENDING.items():",
                "        if getattr(self, name) != value:",
                '            raise errors.ConfigError(f"only {name}={value!r} is implemented")',
            ]

    def norms(self) -> Iterator[str]:
        """TODO comments for norms that are missing or not RMS norms."""
        for path in NORMS:
            if path not in self.by_role:
                yield from comment(f"no weight of theirs is {path}: is there such a norm?", 4)
        for path in (*NORMS, "model.norm"):
            leaf = self.by_role.get(path)
            if leaf is not None and "RMS" not in leaf.kind:
                yield from comment(f"{self.file}:{leaf.line}: {leaf.path} is {leaf.kind}", 4)

    def attention(self) -> Iterator[str]:
        """The call of `nn.Attention`, with the arguments that the leaves determine."""
        fused = next((leaf for leaf in self.leaves if last(leaf) in FUSED), None)
        q, out = self.by_role.get(PROJECTIONS[0], fused), self.by_role.get(PROJECTIONS[3])
        yield from ("return nn.Attention(", "    config,", "    layer,", "    rope,")
        yield from (f"    bias={bias(q)},", f"    out_bias={bias(out)},")
        norm = self.by_role.get(f"{LAYER}.self_attn.q_norm")
        if norm is not None and norm.arguments.get("0") == "self.head_dim" and "RMS" in norm.kind:
            yield '    qk_norm="head",'
        if self.shape.windowed:
            yield "    window=config.window(layer),"
        yield ")"

    def feed_forward(self) -> Iterator[str]:
        """The call of `nn.GatedMLP`, or of `nn.MLP` if there are only two linears."""
        first = self.by_role.get(f"{LAYER}.mlp.fc1")
        block, linear = "GatedMLP", self.by_role.get(f"{LAYER}.mlp.up_proj")
        if first is not None and not self.gated:
            block, linear = "MLP", first
        yield from (
            f"return nn.{block}(",
            "    config.hidden_size,",
            "    config.intermediate_size,",
            "    config.hidden_act,",
            f"    bias={bias(linear)},",
            ")",
        )

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """(reference's path, Llama's path) of modules whose paths differ."""
        return [(theirs, ours) for theirs, ours in self.ours.items() if ours and theirs != ours]

    @property
    def stem(self) -> str:
        """The prefix of the reference's layers, with {i} for the index."""
        found = (leaf.path.partition(".{i}.") for leaf in self.leaves)
        return next((f"{stem}.{{i}}" for stem, _, inner in found if inner), LAYER)

    def names(self) -> Iterator[str]:
        for leaf in self.leaves:
            if self.ours[leaf.path] is None:
                how = "several in one: split it by HeadRows" if last(leaf) in FUSED else "no pair"
                yield from comment(f"{self.file}:{leaf.line}: {leaf.path}, {how}", 4)
        yield "return Names(hub=PAIRS)" if self.pairs else "return Names()"


def last(leaf: Leaf) -> str:
    return leaf.path.rpartition(".")[2]


def bias(leaf: Leaf | None) -> str:
    """The bias of a linear as an expression of `config`; torch's default is True."""
    if leaf is None:
        return "False"
    value = leaf.arguments.get("bias", leaf.arguments.get("2", "True")).removeprefix("self.")
    name = value.removeprefix("config.")
    known = value in ("True", "False") or (name != value and name.isidentifier())
    return value if known else "False"


def pair(theirs: str, ours: str, stem: str) -> str:
    """A line of PAIRS, with the constants LAYER and THEIRS in place of the layers' prefixes."""
    named = {LAYER: "LAYER", stem: "LAYER" if stem == LAYER else "THEIRS"}
    left, right = (spelt(name, named) for name in (theirs, ours))
    line = f"    Pair({left}, {right}),"
    if len(line) <= WIDTH:
        return line
    return f"    Pair(\n        {left},\n        {right},\n    ),"


def spelt(name: str, prefixes: Mapping[str, str]) -> str:
    for prefix, constant in prefixes.items():
        if name.startswith(f"{prefix}."):
            return f'f"{{{constant}}}{name.removeprefix(prefix)}"'
    return f'"{name}"'


def comment(text: str, by: int) -> list[str]:
    """The comment lines of a TODO, wrapped."""
    lines = wrap(f"TODO {text}", WIDTH - by - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in lines]


def indent(lines: Iterable[str], by: int = 4) -> str:
    return "\n".join(" " * by + line if line else "" for line in lines)

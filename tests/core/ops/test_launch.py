"""Launch parameters: defaults, the file of a GPU, and an override while kernels are tuned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ostro.core.ops import launch
from ostro.core.ops.attention import triton as attention
from ostro.core.ops.latent_attention import triton as latent
from ostro.ops import AttentionMetadata, launch_parameters, row_class


class Block(NamedTuple):
    rows: int
    warps: int


class Other(NamedTuple):
    rows: int
    warps: int


SMALL, LARGE = Block(16, 4), Block(64, 8)
KEY = ("torch.bfloat16", (4, 8.0), True)


def lookup(op: str = "product", key: launch.Key = KEY, default: Block = SMALL) -> Any:
    return launch_parameters(op, key, default, lambda: [SMALL, LARGE, Other(64, 8)])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a GPU, which is the current one."""
    monkeypatch.setenv("OSTRO_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X1-80GB")
    launch.measured.cache_clear()
    yield tmp_path / "kernels" / "nvidia_x1_80gb.json"
    launch.measured.cache_clear()


def test_what_was_measured_replaces_the_default(file: Path) -> None:
    assert launch.file_of("NVIDIA X1-80GB") == file
    assert lookup() == SMALL
    launch.write(file, "NVIDIA X1-80GB", {("product", KEY): LARGE})
    launch.measured.cache_clear()
    for _ in range(2):  # the entry is converted once
        assert lookup() is not SMALL and lookup() == LARGE and isinstance(lookup(), Block)
    assert lookup(key=(*KEY, 1)) == lookup("attention") == SMALL


def test_parameters_have_the_type_that_was_measured(file: Path) -> None:
    launch.write(file, "", {("product", KEY): Other(64, 8)})
    launch.measured.cache_clear()
    assert isinstance(lookup(), Other)


def test_without_a_gpu_no_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.write(file, "", {("product", KEY): LARGE})
    launch.measured.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert lookup() == SMALL


def test_what_is_no_candidate_is_not_used(file: Path) -> None:
    """The file may be that of another version."""
    launch.write(file, "", {("product", KEY): Block(32, 4)})
    launch.measured.cache_clear()
    assert lookup() == SMALL


def test_other_calls_stay_in_the_file(file: Path) -> None:
    for op, size in (("product", LARGE), ("attention", LARGE), ("product", SMALL)):
        launch.write(file, "X1", {(op, KEY): size})
    assert launch.read(file) == {
        ("product", KEY): ["Block", 16, 4],
        ("attention", KEY): ["Block", 64, 8],
    }
    assert json.loads(file.read_text())["gpu"] == "X1"
    assert len(file.read_text().splitlines()) == 4


def test_what_another_triton_was_measured_with_is_not_used(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.write(file, "X1", {("product", KEY): LARGE, ("attention", KEY): LARGE})
    monkeypatch.setattr(launch, "triton_version", lambda: "4.0.0")
    assert lookup() == SMALL
    launch.write(file, "X1", {("product", KEY): LARGE})
    assert list(launch.read(file)) == [("product", KEY)]


HEAD = f'{{"triton": "{launch.triton_version()}", "kernels": '


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"kernels": []}', HEAD + '[{"op": "product"}]}', HEAD + '[{"op": 1, "key": {}}]}'],
)
def test_a_damaged_file_is_reported(
    text: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_text(text)
    assert lookup() == SMALL
    assert str(file) in caplog.text and "ostro tune --kernels" in caplog.text


def test_an_override_comes_first(file: Path) -> None:
    launch.write(file, "", {("product", KEY): LARGE})
    launch.measured.cache_clear()
    with launch.override_lookup(lambda op, key, default, candidates: (op, key, list(candidates()))):
        assert lookup() == ("product", KEY, [SMALL, LARGE, Other(64, 8)])
    assert lookup() == LARGE


def test_classes_of_rows() -> None:
    assert [row_class(n) for n in (0, 1, 2, 3, 16, 17, 512, 513, 9000)] == [
        *(1, 1, 2, 4, 16, 32, 512, 1024, 1024)
    ]


def lookups(call: Callable[[], object]) -> list[tuple[str, launch.Key, Any]]:
    """The operation, key and default of each look-up of a call."""
    found = list[tuple[str, launch.Key, Any]]()

    def note(op: str, key: launch.Key, default: Any, candidates: object) -> Any:
        found.append((op, key, default))
        return default

    with launch.override_lookup(note):
        call()
    return found


def step(sequences: int, queries: int) -> AttentionMetadata:
    """Sequences of `queries` rows each, in a block of 16 tokens each."""
    rows = torch.arange(sequences + 1, dtype=torch.int32) * queries
    return AttentionMetadata(
        table=torch.arange(sequences, dtype=torch.int32)[:, None],
        starts=rows,
        lengths=torch.full((sequences,), queries, dtype=torch.int32),
        slots=torch.arange(sequences * queries),
        max_queries=queries,
        max_length=queries,
    )


def attend(sequences: int, queries: int, kernel: Any = attention.attention) -> Any:
    q = torch.zeros(sequences * queries, 2, 16, dtype=torch.float16)
    cache = torch.zeros(sequences, 1, 16, 16, dtype=torch.float16)
    return lookups(lambda: kernel(q, cache, cache, step(sequences, queries), 1.0))


def test_deterministic_attention_looks_nothing_up() -> None:
    assert not attend(1, 1, attention.attention_deterministic)
    assert [op for op, *_ in attend(1, 1)] == ["attention"]


def test_attention_depends_on_streams_or_rows() -> None:
    """Many streams of one row leave fewer programs for each; rows of a prompt fill tiles."""
    keys = [key for sizes in ((1, 1), (4, 1), (1, 8), (1, 9)) for _, key, _ in attend(*sizes)]
    assert len(set(keys)) == 4
    assert attend(3, 1) == attend(4, 1) and attend(1, 9) == attend(2, 16)


def test_tiles_of_latent_attention_depend_on_rows() -> None:
    def look_up(queries: int) -> Any:
        q = torch.zeros(queries, 4, 48, dtype=torch.float16)
        cache = torch.zeros(1, 1, 16, 48, dtype=torch.float16)
        [found] = lookups(
            lambda: latent.latent_attention(q, cache, cache[..., :32], step(1, queries), 1.0)
        )
        return found

    few, many = look_up(4), look_up(5)
    assert (few[2], many[2]) == latent.TILES["interpreter"]
    assert few[1] != many[1] and many == look_up(8)

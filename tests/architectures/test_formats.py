"""The grid of architectures that have a wide config, and a body, in all formats.

`--ostro-plugin PATH` adds an architecture, or a format, from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tiny.families import REPRESENTATIVES

from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Conformance
from ostro.plugins.conformance import references
from ostro.plugins.conformance.architecture import all_plugins, loaded_plugins
from ostro.plugins.conformance.checks import has_outputs
from ostro.plugins.conformance.formats import STD, assert_grid, formats, sample_formats, wide
from ostro.plugins.conformance.parity import Subject

BODY = Architecture(
    name="a body",
    api=(0, 2),
    classes=("NanoChatForCausalLM",),
    config="transformers:NanoChatConfig",
    model="transformers:NanoChatForCausalLM",
    conformance=Conformance(
        wide={
            "vocab_size": 128,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        reference="transformers:NanoChatForCausalLM",
    ),
)
"""A class of transformers that no plugin claims: it is found by what its config says."""


SLOW = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "grid" not in metafunc.fixturenames:
        return
    plugins = loaded_plugins(metafunc.config)
    records = plugins.collect("architectures").values()
    tested = [r for r in records if has_outputs(r) and r.conformance.wide is not None]
    quick = sample_formats(plugins, BODY.name)
    cells = [
        pytest.param(BODY.name, format, marks=() if format in quick else SLOW)
        for format in formats(plugins)
    ]
    for record in tested:
        cells += [pytest.param(record.name, format, marks=SLOW) for format in formats(plugins)]
    metafunc.parametrize(("grid", "format"), cells, indirect=["grid"], scope="module")


@pytest.fixture(scope="module")
def grid(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The subject of an architecture, one after the other."""
    plugins = loaded_plugins(request.config)
    if request.param == BODY.name:
        with body(plugins) as made:
            yield made
        return
    with wide(plugins, plugins.get("architectures", request.param)) as made:
        yield made


@contextmanager
def body(plugins: PluginManager) -> Iterator[Subject]:
    """The subject of a record that no plugin declares."""
    shape = dict(BODY.conformance.wide or {})
    reference = references.build(BODY, shape, STD, plugins)
    with TemporaryDirectory() as folder:
        references.save(BODY, reference, shape, Path(folder))
        yield Subject(BODY, reference, Path(folder), plugins, shape, STD)


def test_representatives_are_trunks() -> None:
    records = all_plugins().collect("architectures")
    assert all(records[name].trunk for name in REPRESENTATIVES)


def test_quantized_models_match_dequantized_weights(grid: Subject, format: str) -> None:
    assert_grid(grid, format)

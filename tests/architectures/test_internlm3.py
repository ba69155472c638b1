"""InternLM 3 against transformers, with the published names of its biases."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.published import Tensors, publish, published_deviation, refuse_or_run

from ostro.core.errors import CheckpointError
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

SAVED = ("attention_bias", "mlp_bias")
QKV = ("q_proj", "k_proj", "v_proj")
DYNAMIC = {"rope_type": "dynamic", "factor": 6.0}


class TestInternLM3(ArchitectureTests):
    name = "internlm3"

    def test_published_names_of_the_biases(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {"qkv_bias": True, "bias": True}, dropped=SAVED)
        assert published_deviation(tiny, loaded) <= BAR

    @pytest.mark.parametrize("qkv", [True, False])
    def test_one_of_the_two_biases(self, tiny: Subject, tmp_path: Path, qkv: bool) -> None:
        """The reference has zeros in place of the biases that the checkpoint lacks."""
        biases = [name for name, _ in tiny.reference.named_parameters() if name.endswith(".bias")]
        absent = {name for name in biases if (name.split(".")[-2] in QKV) != qkv}

        def drop(tensors: Tensors) -> Tensors:
            return {name: tensor for name, tensor in tensors.items() if name not in absent}

        loaded = publish(tiny, tmp_path, {"qkv_bias": qkv, "bias": not qkv}, drop, SAVED)
        parameters = dict(tiny.reference.named_parameters())
        held = {name: parameters[name].data.clone() for name in absent}
        for name in absent:
            parameters[name].data.zero_()
        expected = tiny.run_reference(tiny.prompt)
        for name, value in held.items():
            parameters[name].data.copy_(value)
        assert deviation(tiny.answer(tiny.engine(loaded)), expected) <= BAR

    def test_a_bias_that_the_config_denies(self, tiny: Subject, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="q_proj consists of bias"):
            publish(tiny, tmp_path, {"qkv_bias": False, "bias": True}, dropped=SAVED)

    def test_dynamic_rope_of_the_published_model(self, tiny: Subject) -> None:
        shape = {**tiny.shape, "rope_parameters": {**DYNAMIC, "rope_theta": 50000.0}}
        with subject(tiny.plugins, self.name, config=shape) as dynamic:
            assert dynamic.off(dynamic.engine()) <= BAR

    @pytest.mark.parametrize("field", ["qkv_bias", "bias"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        assert refuse_or_run(tiny, tmp_path, field) == [None, True]

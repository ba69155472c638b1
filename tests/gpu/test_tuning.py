"""`ostro tune --kernels` on a GPU: it ends in time, and tuned kernels compute the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gpu.comparison import ON_GPU, error, pick
from gpu.test_loop import LIMIT, opened

from ostro.core.ops import launch
from ostro.entrypoints.bench.kernels import KernelTuner


@pytest.mark.parametrize("quant", ["q4k", "q8_0"])
def test_tuned_kernels_compute_the_same(
    quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("qwen3-0.6b", tmp_path, quant=quant) as engine:
        rng = random.Random(0)
        prompt = [rng.randrange(engine.vocab) for _ in range(pick(600, 40))]
        before = engine.runner.logits(prompt, rows=pick(200, 16))
        found = KernelTuner(engine, seconds=25, progress=lambda *_: None).run()
        results = [each for step in found.steps.values() for each in step]
        print(f"{sum(each.changed for each in results)} of {len(results)} changed")
        if not ON_GPU:
            assert not results, "kernels of a CPU have no launch parameters"
            return
        assert {each.site.op for each in results} == {"quant_matmul", "attention"}
        assert any(each.tried > 3 for each in results)
        assert all(0 < each.seconds <= each.default_seconds for each in results)
        launch.write(tmp_path / "gpu.json", "GPU", found.chosen)
        table = launch.read(tmp_path / "gpu.json")
        monkeypatch.setattr(launch, "measured", lambda device: table)
        assert error(engine.runner.logits(prompt, rows=200), before) < LIMIT

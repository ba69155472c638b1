"""A prompt whose logits overflow in float16: from Python, the command line and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.cli_runner import CliRunner
from tiny.model import change_weights, make_model, make_tokenizer, make_weights
from tiny.server import serving

import ostro
from ostro.core.errors import StepFailed
from ostro.core.settings import Settings

TEXT = "the logits of this request are not finite in float16; load the model with --dtype bfloat16"
[BAD] = make_tokenizer().encode("z").ids
"""A token that the probe at load does not contain."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first dimension of one token overflows in the first MLP; other tokens lack it."""
    made, layer = make_weights(), "model.layers.0"
    made["model.embed_tokens.weight"][:, 0] = 0
    made["model.embed_tokens.weight"][BAD, 0] = 50
    made[f"{layer}.self_attn.o_proj.weight"][0] = 0
    for name in ("gate_proj", "up_proj"):
        made[f"{layer}.mlp.{name}.weight"][:, 0] = 1e3
    return change_weights(make_model(tmp_path_factory.mktemp("models") / "m"), **made)


def test_python(folder: Path) -> None:
    with ostro.load(folder, dtype="float16") as model:
        good = model.generate("hello", max_tokens=4, temperature=0)
        for rules in ({"temperature": 0}, {"logprobs": 2}, {"top_p": 0.5}):
            with pytest.raises(StepFailed, match=TEXT):
                list(model.stream("hello z", max_tokens=4, **rules))
        assert model.generate("hello", max_tokens=4, temperature=0) == good
    with ostro.load(folder, dtype="float32") as model:
        assert model.generate("hello z", max_tokens=4, temperature=0)


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = CliRunner(folder, capsys)
    assert runner.run("--dtype", "float16")[0] == 0
    runner.assert_rejected(StepFailed, TEXT, options=("--dtype", "float16", "-i", "hello z"))


@pytest.mark.process
def test_http(folder: Path) -> None:
    with serving(Settings(reference=str(folder), dtype="float16")) as server:
        ask = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
        good = server.post("/v1/completions", **ask)
        assert good.status_code == 200
        bad = server.post("/v1/completions", **ask | {"prompt": "hello z"})
        error = bad.json()["error"]
        assert (bad.status_code, error["code"]) == (503, "step_failed")
        assert error["message"].startswith(TEXT)
        # The token is drawn; its row overflows in the next step, when the stream may have begun.
        forced = {"stream": True, "logit_bias": {str(BAD): 100}}
        stream = server.post("/v1/completions", **ask | forced)
        assert stream.text.count(TEXT) == 1 and stream.text.count("step_failed") == 1
        again = server.post("/v1/completions", **ask)
        assert again.json()["choices"] == good.json()["choices"]

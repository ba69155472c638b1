"""Models of a server that cannot be loaded when it starts: the others serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from echo.model import make_model
from tiny.server import RunningServer, serving_models

from ostro.core.errors import CheckpointError, ModelNotFound, OstroError
from ostro.core.settings import Settings
from ostro.entrypoints.http.server import serve
from ostro.entrypoints.serve_config import ModelOptions

pytestmark = pytest.mark.process

ENGINE = "echo.engine:open_engine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that can be loaded, and one whose weights cannot."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two", "broken"):
        make_model(root / name)
    return root


def models(folder: Path, *names: str) -> list[ModelOptions]:
    """Models of these names, loaded on demand if the name ends with "?"."""
    return [
        ModelOptions(
            settings=Settings(reference=str(folder / name.rstrip("?")), name=name.rstrip("?")),
            load="on demand" if name.endswith("?") else "start",
        )
        for name in names
    ]


def states(server: RunningServer) -> dict[str, str]:
    return {each["id"]: each["state"] for each in server.get("/v1/models").json()["data"]}


@pytest.mark.parametrize("bad", ["broken", "missing"])
@pytest.mark.parametrize("first", [True, False])
def test_the_others_serve(
    folder: Path, caplog: pytest.LogCaptureFixture, bad: str, first: bool
) -> None:
    names = (bad, "one", "two") if first else ("one", bad, "two")
    with serving_models(models(folder, *names), engine=ENGINE) as server:
        assert states(server) == {"one": "loaded", "two": "loaded", bad: "failed"}
        for name in ("one", "two", None):
            body = {} if name is None else {"model": name}
            answer = server.post("/v1/completions", prompt="hi", **body)
            assert answer.json()["choices"][0]["text"] == "hi"
        refused = server.post("/v1/completions", prompt="hi", model=bad)
        assert refused.status_code == 503 and str(folder) not in refused.text
        assert server.get("/ready").status_code == 200
    assert f"the model '{bad}' was not" in caplog.text


def test_models_on_demand_serve_if_the_others_fail(folder: Path) -> None:
    with serving_models(models(folder, "broken", "one?"), engine=ENGINE) as server:
        assert states(server) == {"broken": "failed", "one": "unloaded"}
        answer = server.post("/v1/completions", prompt="hi", model="one")
        assert answer.json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("broken",), CheckpointError),
        (("missing",), ModelNotFound),
        (("missing", "broken"), ModelNotFound),
        (("missing?", "absent"), ModelNotFound),
    ],
)
def test_no_model_can_be_loaded(
    folder: Path, names: tuple[str, ...], error: type[OstroError]
) -> None:
    with pytest.raises(error):
        serve(models(folder, *dict.fromkeys(names)), port=0, engine=ENGINE)

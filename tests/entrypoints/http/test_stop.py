"""A server that is stopped amid a response in the background: the next one completes it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import openai
import pytest
from echo.model import make_model

from .test_server import Process

pytestmark = pytest.mark.process

TEXT = "work in the background " * 10


def test_work_in_the_background_continues_after_a_restart(tmp_path: Path) -> None:
    model, store = make_model(tmp_path / "echo"), tmp_path / "store"
    with_store = {"store": str(store)}
    first = Process(model, {"ECHO_STEP": "0.02"}, **with_store)
    try:
        first.wait()
        client = openai.OpenAI(base_url=f"{first.url}/v1", api_key="-", max_retries=0)
        response = client.responses.create(input=TEXT, background=True)
        assert response.status == "queued"
        while response.status == "queued":
            time.sleep(0.01)
            response = client.responses.retrieve(response.id)
        assert response.status == "in_progress", response
        first.process.send_signal(signal.SIGTERM)
        code, _, err = first.end()
        assert code == 0 and "Traceback" not in err, err
    finally:
        first.process.kill()
        first.process.communicate()
    second = Process(model, {}, **with_store)
    try:
        second.wait()
        client = openai.OpenAI(base_url=f"{second.url}/v1", api_key="-", max_retries=0)
        end = time.monotonic() + 120
        while (response := client.responses.retrieve(response.id)).status != "completed":
            assert time.monotonic() < end and response.status in ("queued", "in_progress")
            time.sleep(0.05)
        assert TEXT.strip() in response.output_text
    finally:
        second.process.kill()
        second.process.communicate()

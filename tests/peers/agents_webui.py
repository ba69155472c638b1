"""A chat with a tool in Open WebUI: python agents_webui.py API URL PROMPT [PARAMS].

With the Python that has it. Starts Open WebUI in the working folder with a connection to an API,
"openai" or "ollama", registers a user and a tool that makes a file, asks for the file with the
advanced parameters of the page (JSON), and prints the answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 150.0
TOOL = '''
from pathlib import Path


class Tools:
    def make(self, name: str) -> str:
        """
        Make a file.

        :param name: The name of the file.
        """
        Path(name).touch()
        return f"{name} is made"
'''


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def serve(api: str, url: str, port: int) -> subprocess.Popen[bytes]:
    """Start Open WebUI."""
    home, base = os.environ["HOME"], f"{url}/v1"
    settings = {
        "OPENAI_API_BASE_URL": base,
        "OPENAI_API_KEY": "none",
        "ENABLE_OPENAI_API": str(api == "openai"),
        "OLLAMA_BASE_URL": url,
        "ENABLE_OLLAMA_API": str(api == "ollama"),
        "OFFLINE_MODE": "True",
        "ENABLE_VERSION_UPDATE_CHECK": "False",
        "DATA_DIR": home,
        "WEBUI_SECRET_KEY": "secret",
        "RAG_EMBEDDING_ENGINE": "openai",  # else it loads a model at its start
        "RAG_OPENAI_API_BASE_URL": base,
    }
    program = Path(sys.executable).with_name("open-webui")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.Popen(command, env={**os.environ, **settings})


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Wait until Open WebUI is ready. Raises RuntimeError if it ends or is not ready in time."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            if client.get("/health").is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError("Open WebUI is not ready; read its log above")


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    if response.is_error:
        raise RuntimeError(f"{path}: {response.status_code} {response.text}")
    return response.json()


def sign_up(client: httpx.Client) -> None:
    """Register the first user, and the tool."""
    user = post(client, "/api/v1/auths/signup", name="a", email="a@b.test", password="Secret-1")
    client.headers["Authorization"] = f"Bearer {user['token']}"
    post(client, "/api/v1/tools/create", id="maker", name="Maker", content=TOOL, meta={})


def ask(client: httpx.Client, text: str, params: Any) -> str:
    """The answer in a new chat."""
    [model] = client.get("/api/models").raise_for_status().json()["data"]
    message = {"id": "question", "role": "user", "content": text, "parentId": None}
    body: dict[str, Any] = {
        "model": model["id"],
        "params": params,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "parent_id": None,
        "id": "answer",
        "session_id": "session",
        "user_message": {**message, "childrenIds": [], "models": [model["id"]]},
        "tool_ids": ["maker"],
        "background_tasks": {"title_generation": True, "tags_generation": True},
    }
    chat = post(client, "/api/chat/completions", **body)["chat_id"]
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = client.get(f"/api/v1/chats/{chat}").raise_for_status().json()
        answer = found["chat"]["history"]["messages"].get("answer", {})
        if answer.get("done") or answer.get("error"):
            return str(answer.get("error") or answer["content"])
        time.sleep(0.5)
    raise RuntimeError("Open WebUI does not answer")


def main() -> None:
    api, url, text, *params = sys.argv[1:]
    port = free_port()
    process = serve(api, url, port)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(client, process)
            sign_up(client)
            print(ask(client, text, json.loads(params[0]) if params else {}), flush=True)
            time.sleep(3)  # for the title and the tags
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()

"""A server whose model draws tokens at random: calls are as their constraints allow them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny.server import RunningServer, serving

from ostro.core.settings import STARTER, Settings

HEAD = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t.function | tojson }}\n{% endfor %}assistant: {% if 0 %}"
)
TEMPLATES = {
    "json": f'{HEAD}<tool_call>{{"name": , "arguments": }}</tool_call>{{% endif %}}',
    "tags": f"{HEAD}<tool_call><function=name><parameter=key>{{% endif %}}",
}


@pytest.fixture(scope="module", params=TEMPLATES)
def random_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("templates") / f"{request.param}.jinja"
    template.write_text(TEMPLATES[request.param])
    with serving(Settings(reference=STARTER, chat_template=str(template))) as running:
        yield running

"""Forms of transcriptions as requests of the operation."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from ostro.core.errors import RequestError, Unsupported
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.api.openai.transcriptions import TranscriptionForm
from ostro.entrypoints.operations.tasks.media import TranscriptionRequest

FILE = UploadedFile("a.wav", 0, BytesIO())


def form(**fields: Any) -> TranscriptionForm:
    return TranscriptionForm(file=FILE, **fields)


def test_a_form_is_a_request_of_the_operation() -> None:
    fields: dict[str, Any] = {
        "model": "whisper",
        "adapters": ["accent"],
        "languages": ["de", "fr"],
        "keywords": ["hello"],
        "prompt": "Yes",
        "temperature": 0.5,
    }
    verbose = form(
        **fields, response_format="verbose_json", timestamp_granularities=["segment", "word"]
    )
    assert verbose.to_request("translate") == TranscriptionRequest(
        task="translate", words=True, **fields
    )
    probable = form(language="en", include=["logprobs"], chunking_strategy="auto")
    assert probable.to_request("transcribe") == TranscriptionRequest(language="en", logprobs=True)
    assert form().to_request("transcribe") == TranscriptionRequest()


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"chunking_strategy": {"type": "server_vad"}}, Unsupported, "chunking_strategy"),
        ({"response_format": "diarized_json"}, Unsupported, "response_format"),
        ({"response_format": "xml"}, RequestError, "response_format"),
        ({"response_format": "srt", "stream": True}, RequestError, "response_format"),
        ({"response_format": "text", "include": ["logprobs"]}, RequestError, "include"),
        ({"timestamp_granularities": ["word"]}, RequestError, "timestamp_granularities"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    fields: dict[str, Any], error: type[Exception], param: str
) -> None:
    with pytest.raises(error) as caught:
        form(**fields).to_request("transcribe")
    assert getattr(caught.value, "param", None) == param

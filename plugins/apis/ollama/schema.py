"""Requests, responses and errors of Ollama's API, as in the types of its Python client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from ostro.http import ModelBody
from ostro.pipelines import AdapterChoice
from ostro.plugins.apis.ollama.options import OllamaOptions

IMAGES = "image generation; use /v1/images/generations"


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A called function. `index` numbers the calls of a response."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | UnsetType = UNSET


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A tool call. Requests may lack `id`."""

    function: OllamaFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class OllamaMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message of a request or a response. `images` are base64.

    A tool message refers to the call by `tool_call_id` or by the name of the function, else to the
    first call without a result.
    """

    role: str
    content: str | None = None
    thinking: str | UnsetType | None = UNSET
    images: list[str] | UnsetType | None = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType | None = UNSET
    tool_name: str | UnsetType | None = UNSET
    tool_call_id: str | UnsetType | None = UNSET


class OllamaTarget(msgspec.Struct, kw_only=True):
    """The fields that all requests for a model share. `name:latest` is the model `name`."""

    accepted: ClassVar[Mapping[str, str]] = {
        "keep_alive": "models stay in memory until the server stops"
    }
    extensions: ClassVar[frozenset[str]] = ModelBody.extensions

    model: str
    options: OllamaOptions = msgspec.field(default_factory=OllamaOptions)
    keep_alive: float | str | None = None
    adapters: list[str | AdapterChoice] | None = None
    adapter: str | AdapterChoice | None = None


class OllamaGeneration(OllamaTarget, kw_only=True):
    """The fields that chat and generate requests share.

    `think` enables or disables the reasoning of models that can, or states its effort: "low",
    "medium" or "high".
    """

    stream: bool = True
    think: bool | str | None = None
    format: str | dict[str, Any] = ""
    logprobs: bool = False
    top_logprobs: int | None = None


class OllamaChatRequest(OllamaGeneration, kw_only=True):
    """A conversation to continue. Without messages the response is empty.

    `truncate` drops the oldest messages of a conversation that is longer than `num_ctx` or the
    context, except for those of the system and the last one.
    """

    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    truncate: bool | None = None


class OllamaGenerateRequest(OllamaGeneration, kw_only=True):
    """A prompt to answer; with `raw` or a `suffix`, a prompt to continue without a chat template.

    Without a prompt the response is empty.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "width": IMAGES,
        "height": IMAGES,
        "steps": IMAGES,
    }

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool = False


class OllamaEmbedRequest(OllamaTarget, kw_only=True):
    """Texts to embed. Inputs that are longer than the context are truncated by default."""

    input: str | list[str]
    truncate: bool = True
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaTarget, kw_only=True):
    """A text to embed, in the older form."""

    prompt: str = ""


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """The model to describe; `name` is the older form of `model`."""

    accepted: ClassVar[Mapping[str, str]] = {"verbose": "lists of tokens are not part of it"}

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class OllamaTokenLogprob(msgspec.Struct, kw_only=True):
    """The log probability of a token, and the UTF-8 bytes of its text."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaTokenLogprob, kw_only=True):
    """The log probability of a generated token, and those of the best alternatives."""

    top_logprobs: list[OllamaTokenLogprob] | UnsetType = UNSET


class OllamaTimings(msgspec.Struct, kw_only=True):
    """The fields that responses share. Durations are in nanoseconds.

    The last response of a stream and a whole response have `done`, a reason ("stop", "length" or
    "load"), durations and token counts.
    """

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatResponse(OllamaTimings, kw_only=True):
    """A response, or the next piece of a streamed one, in `message`."""

    message: OllamaMessage


class OllamaGenerateResponse(OllamaTimings, kw_only=True):
    """A response, or the next piece of a streamed one, in `response` and `thinking`."""

    response: str = ""
    thinking: str | UnsetType = UNSET


class OllamaEmbedResponse(msgspec.Struct, kw_only=True):
    """One vector per input, of length 1. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsResponse(msgspec.Struct, kw_only=True):
    """The vector of a text; empty without a text."""

    embedding: list[float]


class OllamaDetails(msgspec.Struct, kw_only=True):
    """What the files of a model contain. `parent_model` is the model of an adapter."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, kw_only=True):
    """A served model or adapter; `size` is in bytes.

    `digest` is the hash of an adapter's weights. That of a model depends on the names, sizes and
    modification times of its files, on its tensors and on the format that they are loaded in.
    """

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(msgspec.Struct, kw_only=True):
    """The models, followed by their adapters."""

    models: list[OllamaModel]


class OllamaRunningModel(msgspec.Struct, kw_only=True):
    """A loaded model. It stays in memory until the server stops: `expires_at` is in the year 9999.

    `size` is the size of its files in bytes.
    """

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str = "9999-12-31T23:59:59Z"
    context_length: int | UnsetType = UNSET


class OllamaRunningModels(msgspec.Struct, kw_only=True):
    """The loaded models, followed by their adapters."""

    models: list[OllamaRunningModel]


class OllamaModelInfo(msgspec.Struct, kw_only=True):
    """A model: its chat template (Jinja), default sampling parameters, sizes and capabilities."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, kw_only=True):
    """The version of Ollama whose API this is; clients test it before they use a feature."""

    version: str


class OllamaError(msgspec.Struct, kw_only=True):
    """An error: the response, or a line of a stream."""

    error: str

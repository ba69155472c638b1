"""The requests of Anthropic's Messages API; types and fields have the names of its client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ostro.http import ModelBody

UNSUPPORTED: Mapping[str, str] = {
    "billing_policy": "billing",
    "compaction": "compaction; send a shorter conversation",
    "container": "code execution",
    "fallback_credit_token": "billing",
    "fallbacks": "a choice among models; send one model",
    "inference_geo": "a choice of regions",
    "mcp_servers": "MCP connections of the server; call the tools in the client",
    "output_format": "the predecessor of output_config.format; use output_config.format",
    "thread": "stored threads; send all messages",
    "user_profile_id": "user profiles; send metadata.user_id",
    "workspace_id": "workspaces",
}
"""Fields that only Anthropic's servers implement, with their features."""

Number = Annotated[float, Meta(ge=0, le=1)]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An object whose unknown fields are rejected."""


class CacheControlParam(Strict, kw_only=True):
    """A cache breakpoint. It has no effect: all prefixes are cached automatically."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class BlockParam(Strict, kw_only=True, tag_field="type"):
    """A content block."""

    cache_control: CacheControlParam | None = None


class TextBlockParam(BlockParam, kw_only=True, tag="text"):
    """Text. Citations, which the server does not generate, are empty."""

    text: str
    citations: Annotated[list[Any], Meta(max_length=0)] | None = None


class ImageSource(Strict, kw_only=True, tag_field="type"):
    """Where an image is."""

    @property
    def address(self) -> str:
        """The URL of the image."""
        raise NotImplementedError


class Base64ImageSource(ImageSource, kw_only=True, tag="base64"):
    """An image in the request."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def address(self) -> str:
        """The image as a data URL."""
        return f"data:{self.media_type};base64,{self.data}"


class URLImageSource(ImageSource, kw_only=True, tag="url"):
    """An image at a URL."""

    url: str

    @property
    def address(self) -> str:
        """The URL."""
        return self.url


class ImageBlockParam(BlockParam, kw_only=True, tag="image"):
    """An image."""

    source: Base64ImageSource | URLImageSource
    transformations: None = None


class PlainTextSource(Strict, kw_only=True, tag_field="type", tag="text"):
    """The text of a document."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentBlockSource(Strict, kw_only=True, tag_field="type", tag="content"):
    """The content of a document."""

    content: str | list[TextBlockParam | ImageBlockParam]


class CitationsConfig(Strict, kw_only=True):
    """Whether the answer cites the document. Citations are not supported."""

    enabled: bool | None = None


class DocumentBlockParam(BlockParam, kw_only=True, tag="document"):
    """A document. The prompt contains its title, its context and its content."""

    source: PlainTextSource | ContentBlockSource
    title: str | None = None
    context: str | None = None
    citations: CitationsConfig | None = None


class SearchResultBlockParam(BlockParam, kw_only=True, tag="search_result"):
    """A result of a search. The prompt contains its title, its source and its content."""

    source: str
    title: str
    content: list[TextBlockParam]
    citations: CitationsConfig | None = None


class ToolReferenceBlockParam(BlockParam, kw_only=True, tag="tool_reference"):
    """Names a tool with `defer_loading`, in a result of a tool: the model may call it from now."""

    tool_name: str


class ThinkingBlockParam(BlockParam, kw_only=True, tag="thinking"):
    """Thinking of an earlier answer. The signature is not verified."""

    thinking: str
    signature: str


class RedactedThinkingBlockParam(BlockParam, kw_only=True, tag="redacted_thinking"):
    """Encrypted thinking of another server. It is left out of the prompt."""

    data: str


class DirectCaller(Strict, kw_only=True):
    """The model itself, as the caller of a tool."""

    type: Literal["direct"]


class ToolUseBlockParam(BlockParam, kw_only=True, tag="tool_use"):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller | None = None
    toolset_name: None = None


ResultBlock = (
    TextBlockParam
    | ImageBlockParam
    | DocumentBlockParam
    | SearchResultBlockParam
    | ToolReferenceBlockParam
)
"""A block in the result of a tool."""


class ToolResultBlockParam(BlockParam, kw_only=True, tag="tool_result"):
    """The result of a tool call of the preceding answer."""

    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None
    toolset_name: None = None


Block = (
    TextBlockParam
    | ImageBlockParam
    | DocumentBlockParam
    | SearchResultBlockParam
    | ThinkingBlockParam
    | RedactedThinkingBlockParam
    | ToolUseBlockParam
    | ToolResultBlockParam
)
BLOCKS = "text image document search_result thinking redacted_thinking tool_use tool_result".split()
"""The types of content blocks."""
RESULT_BLOCKS = "text image document search_result tool_reference".split()
"""The types of blocks in the result of a tool."""


class MessageParam(Strict, kw_only=True):
    """A message. Consecutive messages of one role form one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolParam(Strict, kw_only=True):
    """A tool that the client runs. One of the type custom has an `input_schema`.

    The types in `client_tools` have a name, a description and a schema of their own; the fields
    from `max_characters` on belong to some of them.

    With `defer_loading` it is not in the prompt until a result names it in a `tool_reference`.
    Inputs are streamed whatever `eager_input_streaming` is; examples are not in the prompt.
    """

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    cache_control: CacheControlParam | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: list[Any] | None = None
    max_characters: Annotated[int, Meta(ge=1)] | None = None
    display_width_px: Annotated[int, Meta(ge=1)] | None = None
    display_height_px: Annotated[int, Meta(ge=1)] | None = None
    display_number: Annotated[int, Meta(ge=0)] | None = None
    enable_zoom: bool | None = None


class ToolChoiceParam(Strict, kw_only=True):
    """How the model uses the tools: if it wants to, not, any of them, or the one with a name."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Strict, kw_only=True, tag_field="type", tag="enabled"):
    """The model thinks, at most `budget_tokens` tokens."""

    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Display | None = None


class ThinkingAdaptive(Strict, kw_only=True, tag_field="type", tag="adaptive"):
    """The model thinks if its chat template says so, as without a configuration."""

    display: Display | None = None


class ThinkingDisabled(Strict, kw_only=True, tag_field="type", tag="disabled"):
    """The model does not think."""

    display: None = None


class OutputFormatParam(Strict, kw_only=True):
    """The form of the text: JSON that satisfies a schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfigParam(Strict, kw_only=True):
    """The effort, an option of chat templates, and the form of the text."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormatParam | None = None


class MetadataParam(Strict, kw_only=True):
    """Metadata. The id of the user has no effect."""

    user_id: str | None = None


class ContextManagementParam(Strict, kw_only=True):
    """Edits that shorten the conversation, in order; see `context_editing`."""

    edits: list[dict[str, Any]] | None = None


class DiagnosticsParam(Strict, kw_only=True):
    """A question about the prefix cache: why it lacks the prompt of an earlier message."""

    previous_message_id: str | None = None


class CountTokensRequest(ModelBody, kw_only=True):
    """A conversation. `adapter` and `adapters` select adapters of the model."""

    accepted: ClassVar[Mapping[str, str]] = {"cache_control": "all prefixes are cached"}
    unsupported: ClassVar[Mapping[str, str]] = UNSUPPORTED

    model: str
    messages: list[MessageParam]
    system: str | list[TextBlockParam] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfigParam | None = None
    cache_control: CacheControlParam | None = None
    context_management: ContextManagementParam | None = None
    speed: Literal["standard"] | None = None
    user: None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation that the assistant continues. `seed` makes sampling repeatable."""

    accepted: ClassVar[Mapping[str, str]] = {
        **CountTokensRequest.accepted,
        "diagnostics": "the server compares no prompts; cache_read_input_tokens states the result",
        "metadata": "no abuse detection that needs the id of a user",
        "service_tier": "all requests have the tier standard",
    }
    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | {"seed"}

    max_tokens: Annotated[int, Meta(ge=0)]
    diagnostics: DiagnosticsParam | None = None
    metadata: MetadataParam | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    seed: int | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the response contains the text of the thinking."""
        return getattr(self.thinking, "display", None) != "omitted"

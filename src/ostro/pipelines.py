"""Pipelines: requests of a task, the engine they use, tokenizers, templates and media."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostro.core.chat import (
    RESERVED_TEMPLATE_VARIABLES,
    ChatTemplate,
    missing_template,
    prompt_tokens,
)
from ostro.core.chat.messages import TemplateFeatures, parse_arguments
from ostro.core.ipc.client import AsyncEngine
from ostro.core.media.parts import check_count
from ostro.core.media.process import MediaSource
from ostro.core.media.worker import MediaWorker
from ostro.core.messages.outputs import Finish, JobOutput, TokenLogprobs, TokenOutput
from ostro.core.messages.requests import (
    DEFAULT_MODEL,
    AdapterRef,
    Dry,
    PoolingRequest,
    Sampling,
    TokenRequest,
)
from ostro.core.messages.target import AdapterChoice, ModelTarget
from ostro.core.messages.text import (
    ChoiceEnd,
    Event,
    OutputEvent,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    text_of,
)
from ostro.core.messages.text_requests import (
    JSON_OBJECT,
    ChatRequest,
    Choices,
    CompletionRequest,
    Constraint,
    ContentPart,
    FilePart,
    Grammar,
    JsonSchema,
    MediaPart,
    Message,
    ReasoningEffort,
    Regex,
    StructuralTag,
    TextPart,
    TextRequest,
    Tool,
    ToolCall,
)
from ostro.core.output import OutputParser, Piece, ToolChoice
from ostro.core.pipeline import (
    Answer,
    CheckpointSummary,
    Continuation,
    InsertMedia,
    ReadFile,
    SamplingDefaults,
    ServedModel,
    TextPipeline,
    parse_request,
)
from ostro.core.preparation import PREPARATION_EXECUTOR
from ostro.core.tasks import (
    ImagePipeline,
    ImageProgress,
    ImageUsage,
    PoolingResult,
    Ranked,
    Segment,
    Sound,
    SpeechPipeline,
    TokenLogprob,
    Transcript,
    TranscriptionPipeline,
    TranscriptionState,
    VectorPipeline,
    Word,
)
from ostro.core.tokenizer import Detokenizer, Tokenizer, build_tokenizer, load_tokenizer
from ostro.core.tokenizer.detokenizer import byte_alphabet, token_name
from ostro.core.tokenizer.errors import tokenizer_errors
from ostro.core.tokenizer.stop import Stop
from ostro.core.tokenizer.vocabulary import Vocabulary
from ostro.core.tool_support import ToolSupport
from ostro.core.worker import WorkerProcess
from ostro.plugins.pipelines.fetch import fetch_all

if TYPE_CHECKING:
    from ostro.core.engine.processors import (
        AddedRequest,
        MaskProcessor,
        MaskRequest,
        Processor,
    )
    from ostro.core.engine.speculation import DraftRequest, Proposer
    from ostro.core.media.sound import Samples, resample

_LAZY = {
    "AddedRequest": "ostro.core.engine.processors",
    "MaskProcessor": "ostro.core.engine.processors",
    "MaskRequest": "ostro.core.engine.processors",
    "Processor": "ostro.core.engine.processors",
    "DraftRequest": "ostro.core.engine.speculation",
    "Proposer": "ostro.core.engine.speculation",
    "Samples": "ostro.core.media.sound",
    "resample": "ostro.core.media.sound",
}
"""Imported on first use: these modules need torch, Triton or NumPy."""

__all__ = [
    "DEFAULT_MODEL",
    "JSON_OBJECT",
    "PREPARATION_EXECUTOR",
    "RESERVED_TEMPLATE_VARIABLES",
    "AdapterChoice",
    "AdapterRef",
    "AddedRequest",
    "Answer",
    "AsyncEngine",
    "ChatRequest",
    "ChatTemplate",
    "CheckpointSummary",
    "ChoiceEnd",
    "Choices",
    "CompletionRequest",
    "Constraint",
    "ContentPart",
    "Continuation",
    "Detokenizer",
    "DraftRequest",
    "Dry",
    "Event",
    "FilePart",
    "Finish",
    "Grammar",
    "ImagePipeline",
    "ImageProgress",
    "ImageUsage",
    "InsertMedia",
    "JobOutput",
    "JsonSchema",
    "MaskProcessor",
    "MaskRequest",
    "MediaPart",
    "MediaSource",
    "MediaWorker",
    "Message",
    "ModelTarget",
    "OutputEvent",
    "OutputParser",
    "Piece",
    "PoolingRequest",
    "PoolingResult",
    "Processor",
    "Proposer",
    "Ranked",
    "ReadFile",
    "Reasoning",
    "ReasoningEffort",
    "Regex",
    "Samples",
    "Sampling",
    "SamplingDefaults",
    "Segment",
    "ServedModel",
    "Sound",
    "SpeechPipeline",
    "Stop",
    "StructuralTag",
    "TemplateFeatures",
    "Text",
    "TextPart",
    "TextPipeline",
    "TextRequest",
    "TokenLogprob",
    "TokenLogprobs",
    "TokenOutput",
    "TokenRequest",
    "Tokenizer",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolChoice",
    "ToolSupport",
    "Transcript",
    "TranscriptionPipeline",
    "TranscriptionState",
    "Usage",
    "VectorPipeline",
    "Vocabulary",
    "Word",
    "WorkerProcess",
    "build_tokenizer",
    "byte_alphabet",
    "check_count",
    "fetch_all",
    "load_tokenizer",
    "missing_template",
    "parse_arguments",
    "parse_request",
    "prompt_tokens",
    "resample",
    "text_of",
    "token_name",
    "tokenizer_errors",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)

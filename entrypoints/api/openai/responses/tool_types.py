"""The types of tools, and of the choice among them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.entrypoints.api.openai.custom_tools import AnyInput, Syntax
from ostro.entrypoints.api.openai.responses.parts import Tagged

RawSchema = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
"""A JSON schema. It is kept as text: as objects it can take twenty times the memory."""
OptionalRawSchema = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["object", "null"], "default": None})
]
NO_SCHEMA = msgspec.Raw(b"null")


class NamedChoice(Tagged, kw_only=True, omit_defaults=True):
    """The tool that the model must call, or one that it may.

    A tool of a namespace is named with the field `namespace`, or as the model knows it.
    """

    name: str
    namespace: str | None = None


class FunctionChoice(NamedChoice, kw_only=True, tag="function"):
    """A function that the model must or may call."""


class CustomChoice(NamedChoice, kw_only=True, tag="custom"):
    """A custom tool that the model must or may call."""


class ClientToolChoice(Tagged, kw_only=True):
    """A `ClientTool` that the model must or may call; its type is its name."""

    namespace: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The name by which the model knows the tool."""
        return str(self.__struct_config__.tag)


class LocalShellChoice(ClientToolChoice, kw_only=True, tag="local_shell"):
    """The model must or may call the local shell."""


class ShellChoice(ClientToolChoice, kw_only=True, tag="shell"):
    """The model must or may call the shell."""


class ApplyPatchChoice(ClientToolChoice, kw_only=True, tag="apply_patch"):
    """The model must or may edit files."""


class ToolSearchChoice(ClientToolChoice, kw_only=True, tag="tool_search"):
    """The model must or may search for tools."""


OneTool = (
    FunctionChoice
    | CustomChoice
    | LocalShellChoice
    | ShellChoice
    | ApplyPatchChoice
    | ToolSearchChoice
)


class AllowedTools(Tagged, kw_only=True, tag="allowed_tools"):
    """The tools that the model may (`auto`) or must (`required`) call."""

    mode: Literal["auto", "required"]
    tools: list[OneTool]


ToolChoice = Literal["auto", "none", "required"] | OneTool | AllowedTools
"""Whether the model calls tools."""


class FunctionTool(Tagged, kw_only=True, tag="function"):
    """A function that the model may call; `parameters` is a JSON schema.

    The arguments of calls of `strict` functions follow it. If the client runs a `tool_search`, a
    function with `defer_loading` is not in the prompt until a search has returned it.
    """

    name: str
    description: str | None = None
    parameters: OptionalRawSchema = msgspec.field(default_factory=lambda: NO_SCHEMA)
    strict: bool | None = None
    defer_loading: bool | UnsetType | None = UNSET


class GrammarInput(Tagged, kw_only=True, tag="grammar"):
    """The input of a custom tool follows a grammar in Lark, or a regular expression of Rust."""

    syntax: Syntax
    definition: str


class CustomTool(Tagged, kw_only=True, tag="custom"):
    """A tool whose input is a text. The model knows it as a function with that one argument."""

    name: str
    description: str | None = None
    format: AnyInput | GrammarInput | None = None
    defer_loading: bool | UnsetType | None = UNSET


class NamespaceTool(Tagged, kw_only=True, tag="namespace"):
    """Tools with a common prefix: the model knows them as `namespace__name`."""

    name: str
    description: str | None = None
    tools: list[FunctionTool | CustomTool]


class ClientTool(Tagged, kw_only=True):
    """A tool whose parameters and calls OpenAI has defined, and which the client runs.

    The model knows it by its type; see `client_tools`.
    """

    defer_loading: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The name by which the model knows the tool."""
        return str(self.__struct_config__.tag)


class LocalShellTool(ClientTool, kw_only=True, tag="local_shell"):
    """Runs one command on the client's machine."""


class LocalSkill(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A folder of the client with instructions, which the shell can read."""

    name: str
    description: str
    path: str


class LocalEnvironment(Tagged, kw_only=True, tag="local"):
    """The client's machine, with the skills that the model reads of."""

    skills: list[LocalSkill] | UnsetType = UNSET


class ShellTool(ClientTool, kw_only=True, tag="shell"):
    """Runs commands of a shell on the client's machine."""

    environment: LocalEnvironment | UnsetType | None = UNSET


class ApplyPatchTool(ClientTool, kw_only=True, tag="apply_patch"):
    """Creates, changes and deletes files of the client."""


class ToolSearchTool(ClientTool, kw_only=True, tag="tool_search"):
    """Searches the tools of the client: what it returns can be called from then on."""

    execution: Literal["client"]
    description: str | None = None
    parameters: OptionalRawSchema = msgspec.field(default_factory=lambda: NO_SCHEMA)


CallableTool = (
    FunctionTool | CustomTool | LocalShellTool | ShellTool | ApplyPatchTool | ToolSearchTool
)
"""A tool that the model can call: to it, all of them are functions."""
SearchedTool = FunctionTool | CustomTool | NamespaceTool
"""A tool that a search returns."""
ResponseTool = CallableTool | NamespaceTool
"""A tool of a response."""

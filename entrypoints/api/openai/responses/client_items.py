"""Items of the tools that OpenAI has defined and the client runs: calls and their outputs.

A call begins without its fields. It stays like that if its arguments were cut off or do not follow
their schema: a part of a command is not to be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.chat.messages import parse_arguments
from ostro.core.store import new_id
from ostro.entrypoints.api.openai.responses.parts import Status, Tagged
from ostro.entrypoints.api.openai.responses.tool_types import (
    ApplyPatchTool,
    ClientTool,
    LocalShellTool,
    NamespaceTool,
    SearchedTool,
    ShellTool,
)


class ClientCall(Tagged, kw_only=True):
    """A call of a `ClientTool`."""

    tool: ClassVar[str]
    """The name by which the model knows the tool."""

    call_id: str
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET

    @property
    def arguments_text(self) -> str:
        """The arguments as the model writes them, in JSON."""
        raise NotImplementedError

    def read(self, arguments: str) -> None:
        """Set the fields of the call. Raises DecodeError for arguments of another form."""
        raise NotImplementedError

    def end(self, arguments: str, status: Status) -> None:
        """Set the fields and the status of the call, whose arguments may be cut off."""
        self.status = status
        try:
            self.read(arguments)
        except msgspec.DecodeError:
            self.status = "incomplete"


class ClientCallOutput(Tagged, kw_only=True):
    """What the client returns of a call of a `ClientTool`."""

    @property
    def text(self) -> str:
        """What the model reads."""
        raise NotImplementedError


class LocalShellAction(Tagged, kw_only=True, tag="exec"):
    """A program with its arguments, and where and how long it runs."""

    command: list[str]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    working_directory: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    user: str | UnsetType = UNSET


class LocalShellCallItem(ClientCall, kw_only=True, tag="local_shell_call"):
    """A call of the local shell. Its id and `call_id` are the same: outputs have only one."""

    tool: ClassVar[str] = "local_shell"

    action: LocalShellAction

    @property
    def arguments_text(self) -> str:
        action = msgspec.to_builtins(self.action)
        return encoded({key: x for key, x in action.items() if key != "type" and x != {}})

    def read(self, arguments: str) -> None:
        self.action = msgspec.json.decode(arguments, type=LocalShellAction)


class LocalShellCallOutputItem(ClientCallOutput, kw_only=True, tag="local_shell_call_output"):
    """The output of a call of the local shell, which clients name by `call_id` or by `id`."""

    output: str
    call_id: str = ""
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET

    @property
    def text(self) -> str:
        return self.output


class ShellAction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Commands of a shell, how long they run and how much they print."""

    commands: list[str]
    timeout_ms: int | UnsetType = UNSET
    max_output_length: int | UnsetType = UNSET


class ShellCallItem(ClientCall, kw_only=True, tag="shell_call"):
    """A call of the shell, with the client's statement of where it runs."""

    tool: ClassVar[str] = "shell"

    action: ShellAction
    environment: dict[str, Any] | UnsetType = UNSET

    @property
    def arguments_text(self) -> str:
        return encoded(self.action)

    def read(self, arguments: str) -> None:
        self.action = msgspec.json.decode(arguments, type=ShellAction)


class Exit(Tagged, kw_only=True, tag="exit"):
    """A command has ended."""

    exit_code: int


class Timeout(Tagged, kw_only=True, tag="timeout"):
    """A command has run for too long."""


class CommandOutput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a command has printed, and how it has ended."""

    stdout: str
    stderr: str
    outcome: Exit | Timeout

    @property
    def text(self) -> str:
        """What the model reads."""
        outcome = self.outcome
        end = f"exit code {outcome.exit_code}" if isinstance(outcome, Exit) else "timeout"
        printed = [text.rstrip("\n") for text in (self.stdout, self.stderr) if text]
        return "\n".join([end, *printed])


class ShellCallOutputItem(ClientCallOutput, kw_only=True, tag="shell_call_output"):
    """The outputs of the commands of a call of the shell."""

    call_id: str
    output: list[CommandOutput]
    max_output_length: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.output)


class FileOperation(Tagged, kw_only=True):
    """What happens to a file."""

    path: str


class CreateFile(FileOperation, kw_only=True, tag="create_file"):
    """A file is created: each line of `diff` is one of the file, with + in front."""

    diff: str


class UpdateFile(FileOperation, kw_only=True, tag="update_file"):
    """A file is changed: `diff` has the places with unchanged, removed and added lines."""

    diff: str


class DeleteFile(FileOperation, kw_only=True, tag="delete_file", forbid_unknown_fields=False):
    """A file is deleted. A model writes an empty `diff` to it as well."""


class ApplyPatchCallItem(ClientCall, kw_only=True, tag="apply_patch_call"):
    """A call that changes a file."""

    tool: ClassVar[str] = "apply_patch"

    operation: CreateFile | UpdateFile | DeleteFile

    @property
    def arguments_text(self) -> str:
        return encoded(
            {**msgspec.to_builtins(self.operation), "diff": getattr(self.operation, "diff", "")}
        )

    def read(self, arguments: str) -> None:
        self.operation = msgspec.json.decode(arguments, type=CreateFile | UpdateFile | DeleteFile)

    def end(self, arguments: str, status: Status) -> None:
        super().end(arguments, status)
        if self.status == "incomplete":  # which this type does not have
            self.status = "in_progress"


class ApplyPatchCallOutputItem(ClientCallOutput, kw_only=True, tag="apply_patch_call_output"):
    """Whether a file was changed, and what the client says of it."""

    call_id: str
    status: Literal["completed", "failed"]
    output: str | UnsetType = UNSET
    id: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        return "\n".join([self.status, self.output] if self.output else [self.status])


class ToolSearchCallItem(ClientCall, kw_only=True, tag="tool_search_call"):
    """A search for tools, with arguments that follow the schema of the client."""

    tool: ClassVar[str] = "tool_search"

    execution: Literal["client"]
    arguments: Any

    @property
    def arguments_text(self) -> str:
        return encoded(self.arguments)

    def read(self, arguments: str) -> None:
        self.arguments = parse_arguments(arguments)


class ToolSearchOutputItem(ClientCallOutput, kw_only=True, tag="tool_search_output"):
    """The tools that a search has found. The model can call them from then on."""

    call_id: str
    execution: Literal["client"]
    tools: list[SearchedTool]
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET

    @property
    def text(self) -> str:
        names = ", ".join(names_of(self.tools))
        return f"These tools can be called now: {names}." if names else "No tools were found."


ClientCallItem = LocalShellCallItem | ShellCallItem | ApplyPatchCallItem | ToolSearchCallItem
ClientCallOutputItem = (
    LocalShellCallOutputItem | ShellCallOutputItem | ApplyPatchCallOutputItem | ToolSearchOutputItem
)


def new_client_call(tool: ClientTool, call_id: str) -> ClientCallItem:
    """Return the item of a call that begins."""
    begun: dict[str, Any] = {"call_id": call_id, "status": "in_progress"}
    match tool:
        case LocalShellTool():
            begun["call_id"] = begun["id"] = new_id("lsh_")
            return LocalShellCallItem(action=LocalShellAction(command=[]), **begun)
        case ShellTool():
            return ShellCallItem(id=new_id("sh_"), action=ShellAction(commands=[]), **begun)
        case ApplyPatchTool():
            nothing = UpdateFile(path="", diff="")
            return ApplyPatchCallItem(id=new_id("apc_"), operation=nothing, **begun)
    return ToolSearchCallItem(id=new_id("tsc_"), execution="client", arguments={}, **begun)


def encoded(value: Any) -> str:
    """Return a value in JSON."""
    return msgspec.json.encode(value).decode()


def joined_name(namespace: str | UnsetType | None, name: str) -> str:
    """Return the name by which the model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def names_of(tools: Sequence[SearchedTool]) -> list[str]:
    """Return the names by which the model knows the tools that a search has found."""
    names = list[str]()
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            names += [joined_name(tool.name, inner.name) for inner in tool.tools]
        else:
            names.append(tool.name)
    return names

"""What the model knows of the tools that OpenAI has defined and the client runs.

OpenAI's models were trained with these tools. Here the model reads what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostro.core.messages.text_requests import Tool
from ostro.entrypoints.api.openai.responses.tool_types import (
    ClientTool,
    LocalEnvironment,
    LocalSkill,
    ShellTool,
)

TIMEOUT = {"type": "integer", "minimum": 1, "description": "The longest run, in milliseconds."}


def parameters_of(required: Sequence[str], **properties: Any) -> Mapping[str, Any]:
    """Return the schema of the arguments of a tool."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def texts(description: str) -> Mapping[str, Any]:
    """Return the schema of one or more texts."""
    return {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": description,
    }


DESCRIPTIONS: Mapping[str, str] = {
    "local_shell": "Runs a command on the user's machine and returns its output.",
    "shell": "Runs commands of a shell on the user's machine, in order, and returns their outputs.",
    "apply_patch": "Creates, updates or deletes a file of the user.",
}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "local_shell": parameters_of(
        ["command"],
        command=texts('The program and its arguments, such as ["ls", "-l"].'),
        working_directory={"type": "string", "description": "The folder to run it in."},
        timeout_ms=TIMEOUT,
    ),
    "shell": parameters_of(
        ["commands"],
        commands=texts('The commands, such as ["cd src && ls -l"].'),
        timeout_ms=TIMEOUT,
        max_output_length={
            "type": "integer",
            "minimum": 1,
            "description": "The most characters to return.",
        },
    ),
    "apply_patch": parameters_of(
        ["type", "path", "diff"],
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string", "description": "The file, relative to the working directory."},
        diff={
            "type": "string",
            "description": (
                "For create_file: all lines of the file, each with + in front. For update_file: "
                "one or more hunks. A hunk begins with a line @@ and has some unchanged lines with "
                "a space in front, the removed lines with - and the added lines with +. If several "
                "places have these lines, @@ and the line of the class or function above begin "
                "the hunk. No line numbers. For delete_file: an empty text."
            ),
        },
    ),
}
"""By the type of a tool. Values of local_shell and shell are the fields of the item's `action`,
those of apply_patch of its `operation`."""
SEARCH = "Searches for tools. The tools that it returns can be called afterwards."
QUERY = parameters_of(
    ["query"], query={"type": "string", "description": "What the tools should do."}
)


def client_tool(tool: ClientTool) -> Tool:
    """Return the function that a model knows a tool as, except for a `tool_search`."""
    description = DESCRIPTIONS[tool.name]
    if isinstance(tool, ShellTool) and isinstance(tool.environment, LocalEnvironment):
        description += skills_text(tool.environment.skills or ())
    return Tool(tool.name, PARAMETERS[tool.name], description=description)


def search_tool(description: str | None, parameters: Mapping[str, Any]) -> Tool:
    """Return the function that a model knows a `tool_search` as."""
    return Tool("tool_search", parameters or QUERY, description=description or SEARCH)


def skills_text(skills: Sequence[LocalSkill]) -> str:
    """Return what a model reads of skills."""
    if not skills:
        return ""
    lines = (f"- {skill.name}: {skill.description} ({skill.path})" for skill in skills)
    return "\n\nFolders with instructions; read SKILL.md there before such a task:\n" + "\n".join(
        lines
    )

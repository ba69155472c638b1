"""Anthropic's typed tools that the client runs: the descriptions and schemas that the model gets.

A declaration of such a type has no schema. The parameters of each version are those of Anthropic's
documentation and client. Schemas are flat: which parameters a command needs is in descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from ostro.errors import RequestError
from ostro.http import ignore
from ostro.pipelines import Tool
from ostro.plugins.apis.anthropic.schema import ToolParam

OPTIONS = (
    "max_characters",
    "display_width_px",
    "display_height_px",
    "display_number",
    "enable_zoom",
)
"""Fields that only some of these types have."""
CUSTOM = ("description", "eager_input_streaming")
"""Fields that only the type custom has."""
SIZE = ("display_width_px", "display_height_px")
"""Fields that a computer needs."""

EDITS = {
    "view": "view shows a file or the content of a folder",
    "create": "create writes the file path with the content file_text",
    "str_replace": "str_replace replaces old_str by new_str",
    "insert": "insert puts {text} behind the line insert_line",
    "undo_edit": "undo_edit takes back the last edit of the file path",
    "delete": "delete deletes the file or folder path",
    "rename": "rename moves old_path to new_path",
}
"""The commands on files, and what they do."""
ACTIONS = {
    "key": "key presses the keys in text",
    "type": "type types the text",
    "mouse_move": "mouse_move moves the cursor to coordinate",
    "left_click": "",
    "left_click_drag": "left_click_drag drags to coordinate",
    "right_click": "",
    "middle_click": "",
    "double_click": "",
    "screenshot": "screenshot shows the screen",
    "cursor_position": "cursor_position tells where the cursor is",
}
"""The actions of all versions, and what they do."""
LATER_ACTIONS = {
    **ACTIONS,
    "left_click_drag": "left_click_drag drags from start_coordinate to coordinate",
    "left_mouse_down": "",
    "left_mouse_up": "",
    "scroll": "scroll turns the wheel by scroll_amount",
    "hold_key": "hold_key holds the keys in text for duration",
    "wait": "wait does nothing for duration",
    "triple_click": "",
}
"""The actions of the versions since 20250124."""


class Shown(NamedTuple):
    """What the model reads of a tool: its description and its parameters.

    required: the names of the parameters that all calls have
    """

    description: str
    properties: dict[str, Any]
    required: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ClientTool:
    """A type of tools.

    name     the name of the tool
    show     returns what the model reads for a declaration
    options  the fields of a declaration besides those of all tools
    needs    those that must be there
    """

    name: str
    show: Callable[[ToolParam], Shown]
    options: Sequence[str] = ()
    needs: Sequence[str] = ()


def text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def choice(names: Sequence[str], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*names], "description": description}


def integers(count: int, description: str, **limits: int) -> dict[str, Any]:
    """The schema of a list of so many integers."""
    items = {"type": "integer", **limits}
    size = {"minItems": count, "maxItems": count}
    return {"type": "array", "items": items, **size, "description": description}


LATER_PARAMETERS: Mapping[str, Any] = {
    "start_coordinate": integers(2, "For left_click_drag: where it begins.", minimum=0),
    "scroll_direction": choice(["up", "down", "left", "right"], "For scroll: where to."),
    "scroll_amount": {
        "type": "integer",
        "minimum": 0,
        "description": "For scroll: the steps of the wheel.",
    },
    "duration": {
        "type": "number",
        "minimum": 0,
        "description": "For hold_key and wait: how long, in seconds.",
    },
}
"""The parameters that computers have since 20250124."""


def bash(tool: ToolParam) -> Shown:
    """A shell."""
    return Shown(
        "Run commands in a bash shell. It keeps its working directory and its variables between "
        "calls. A call has either command or restart.",
        {
            "command": text("The command to run."),
            "restart": {
                "type": "boolean",
                "description": "true starts a new shell, for example after a command hangs.",
            },
        },
    )


def file_commands(names: Sequence[str], insert: str) -> dict[str, Any]:
    """The parameters of commands on files; `insert` is the one with the text to insert."""
    new = "For str_replace: the text in its place."
    if insert == "new_str":
        new += " For insert: the text to insert."
    what = "; ".join(EDITS[name] for name in names).format(text=insert)
    properties = {
        "command": choice(names, f"What to do: {what}."),
        "path": text("The path of the file or folder, such as /repo/file.py."),
        "view_range": integers(
            2, "For view of a file: the first and the last line, from 1; -1 is the end."
        ),
        "file_text": text("For create: the whole content of the file."),
        "insert_line": {
            "type": "integer",
            "minimum": 0,
            "description": "For insert: the line behind which the text goes; 0 is the beginning.",
        },
        "old_str": text(
            "For str_replace: the text to replace, exactly as in the file, with its white space. "
            "It must be there once."
        ),
        "new_str": text(new),
    }
    if insert == "insert_text":
        properties["insert_text"] = text("For insert: the text to insert.")
    return properties


def text_editor(tool: ToolParam, *, undo: bool, insert: str) -> Shown:
    """An editor of files."""
    description = "View, create and edit text files."
    if tool.max_characters is not None:
        description += (
            f" view shows at most {tool.max_characters} characters; view_range selects the lines."
        )
    names = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undo else [])]
    return Shown(description, file_commands(names, insert), ["command", "path"])


def memory(tool: ToolParam) -> Shown:
    """Files that outlast a conversation."""
    names = ["view", "create", "str_replace", "insert", "delete", "rename"]
    properties = file_commands(names, "insert_text")
    properties["path"] = text(
        "The path of the file or folder, such as /memories/notes.md; rename has none."
    )
    properties["old_path"] = text("For rename: the path as it is.")
    properties["new_path"] = text("For rename: the new path.")
    return Shown(
        "Keep notes in files of the folder /memories, which outlast the conversation. View "
        "/memories before you begin, and write down what may be useful later.",
        properties,
        ["command"],
    )


def computer(tool: ToolParam, *, later: bool = True) -> Shown:
    """A computer with a display. later: of a version since 20250124."""
    description = (
        "Use a computer by its screen, mouse and keyboard. The screen has "
        f"{tool.display_width_px} x {tool.display_height_px} pixels; coordinates are [x, y] from "
        "the upper left corner. Take a screenshot to see the screen and the effect of actions."
    )
    if tool.display_number is not None:
        description += f" It is the X11 display :{tool.display_number}."
    actions = dict(LATER_ACTIONS if later else ACTIONS)
    if tool.enable_zoom:
        actions["zoom"] = "zoom shows the region of the screen enlarged"
    what = "; ".join(filter(None, actions.values()))
    keys = "For type: the text. For key: the keys, such as Return or ctrl+s."
    place = "For mouse_move and left_click_drag: where the cursor goes. Clicks are where it is."
    if later:
        keys += " For hold_key: the keys. For clicks and scroll: keys to hold, such as shift."
        place = "Where the action is, or ends. Without it, clicks and scroll are at the cursor."
    properties = {
        "action": choice([*actions], f"What to do: {what}."),
        "coordinate": integers(2, place, minimum=0),
        "text": text(keys),
    }
    if later:
        properties |= LATER_PARAMETERS
    if tool.enable_zoom:
        properties["region"] = integers(4, "For zoom: the corners [x0, y0, x1, y1].", minimum=0)
    return Shown(description, properties, ["action"])


OLD_EDITOR = ClientTool(
    name="str_replace_editor", show=partial(text_editor, undo=True, insert="new_str")
)
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash_20241022": ClientTool(name="bash", show=bash),
    "bash_20250124": ClientTool(name="bash", show=bash),
    "computer_20241022": ClientTool(
        name="computer",
        show=partial(computer, later=False),
        options=(*SIZE, "display_number"),
        needs=SIZE,
    ),
    "computer_20250124": ClientTool(
        name="computer", show=computer, options=(*SIZE, "display_number"), needs=SIZE
    ),
    "computer_20251124": ClientTool(
        name="computer",
        show=computer,
        options=(*SIZE, "display_number", "enable_zoom"),
        needs=SIZE,
    ),
    "memory_20250818": ClientTool(name="memory", show=memory),
    "text_editor_20241022": OLD_EDITOR,
    "text_editor_20250124": OLD_EDITOR,
    "text_editor_20250429": ClientTool(
        name="str_replace_based_edit_tool",
        show=partial(text_editor, undo=False, insert="new_str"),
    ),
    "text_editor_20250728": ClientTool(
        name="str_replace_based_edit_tool",
        show=partial(text_editor, undo=False, insert="insert_text"),
        options=("max_characters",),
    ),
}
"""The types by name."""


def versions(kind: str) -> list[str]:
    """Return the types of the same tool as one that is not known; none for other tools."""
    return [each for each in CLIENT_TOOLS if kind.startswith(f"{each.rpartition('_')[0]}_")]


def client_tool(tool: ToolParam, kind: ClientTool, where: str) -> Tool:
    """Return the tool that the model gets for a declaration of a type.

    Raises RequestError for another name, for a schema, and for a field that is missing or unknown.
    """
    if tool.name != kind.name:
        raise RequestError(
            f"{where}.name: tools of the type {tool.type} have the name {kind.name!r}",
            param=f"{where}.name",
        )
    if tool.input_schema is not None:
        raise RequestError(
            f"{where}.input_schema: the type {tool.type} has a schema of its own; leave it out, or "
            "use the type custom",
            param=f"{where}.input_schema",
        )
    for name in kind.needs:
        if getattr(tool, name) is None:
            raise RequestError(f"the field {where}.{name} is missing", param=f"{where}.{name}")
    tool = without_unknown(tool, kind.options, (*OPTIONS, *CUSTOM), where)
    description, properties, required = kind.show(tool)
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }
    return Tool(kind.name, parameters, bool(tool.strict), description)


def custom_tool(tool: ToolParam, where: str) -> Tool:
    """Return the tool that the model gets for a declaration of the type custom.

    Raises RequestError for a field that is missing or unknown.
    """
    if tool.input_schema is None:
        raise RequestError(
            f"the field {where}.input_schema is missing", param=f"{where}.input_schema"
        )
    without_unknown(tool, (), OPTIONS, where)
    return Tool(tool.name, tool.input_schema, bool(tool.strict), tool.description)


def without_unknown(
    tool: ToolParam, options: Sequence[str], names: Sequence[str], where: str
) -> ToolParam:
    """Return a declaration without the fields of these names that are no options of its type.

    Raises RequestError for these if unknown fields are errors.
    """
    unknown = [name for name in names if name not in options and getattr(tool, name) is not None]
    for name in unknown:
        if not ignore(f"{where}.{name}"):
            raise RequestError(
                f"unknown field '{where}.{name}': tools of the type {tool.type or 'custom'} do not "
                "have it",
                param=f"{where}.{name}",
            )
    return replace(tool, **dict.fromkeys(unknown))

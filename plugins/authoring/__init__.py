"""The command `ostro plugin`: create and check plugins, and list building blocks and the API."""

from collections.abc import Iterable

from ostro import Command, hookimpl


@hookimpl
def ostro_commands() -> Iterable[Command]:
    yield Command(
        name="plugin",
        help="write a plugin of your own, or check one",
        parser=f"{__name__}.command:declare",
        run=f"{__name__}.command:run",
    )

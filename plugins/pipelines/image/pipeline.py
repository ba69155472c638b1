"""Pictures of a prompt: a job of the engine, whose slices tell how far it is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ostro import Array, Inputs, JobRequest, resolve
from ostro.errors import RequestError
from ostro.pipelines import AdapterRef, AsyncEngine, ServedModel

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_IMAGES = 10
MAX_PROMPT = 20_000
"""Characters of a prompt."""


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for beside the prompt; None takes what the model was made for.

    width, height in pixels; steps of denoising; guidance: how closely the prompt is followed; seed
    of the first of `n` images, the next ones count up; previews: how many on the way; strength: how
    much of a first image is drawn anew, 0..1.
    """

    n: int = 1
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    previews: int = 0
    strength: float | None = None
    second_prompt: str | None = None

    def check(self) -> None:
        """Raise RequestError for what no model could draw."""
        for name, low, high in (("n", 1, MAX_IMAGES), ("previews", 0, 50), ("seed", 0, 2**63 - 11)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name}={value} is not within {low}..{high}", param=name)


@dataclass(frozen=True)
class Progress:
    """How far a drawing is: `done` of `total` slices; `images` are previews, or at the end the
    pictures, with the `generations` of the adapters that they were made with; None where none were
    asked for.
    """

    done: int
    total: int
    images: list[Image] = field(default_factory=list)
    final: bool = False
    generations: list[str] | None = None


class Images:
    """Draws with one model. Makes its requests outside of the event loop."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        self.model, self.engine, self.name = model, engine, model.name

    @cached_property
    def inputs(self) -> Inputs:
        """What turns prompts into what the model reads."""
        assert self.model.architecture.inputs is not None, "a model that draws has inputs"
        made: Inputs = resolve(self.model.architecture.inputs)(
            self.model.raw_config, self.model.path
        )
        return made

    async def draw(
        self,
        prompt: str,
        *,
        image: Any = None,
        adapters: Sequence[AdapterRef] = (),
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> list[Image]:
        """The pictures of a prompt. `options` are the fields of `Drawing`, `image` a PIL image to
        start from; `progress` is told (slices done, in all, previews). Raises RequestError.
        """
        work = self.finish(prompt, image=image, adapters=adapters, progress=progress, **options)
        return (await work).images

    async def finish(
        self,
        prompt: str,
        *,
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> Progress:
        """A drawing when it is done. As `draw`."""
        last = Progress(0, 0)
        async with aclosing(self.stream(prompt, **options)) as steps:
            async for last in steps:
                if progress is not None:
                    progress(last.done, last.total, [] if last.final else last.images)
        return last

    async def stream(
        self,
        prompt: str,
        *,
        image: Any = None,
        adapters: Sequence[AdapterRef] = (),
        **options: Any,
    ) -> AsyncGenerator[Progress, None]:
        """A drawing as it goes on; closing early stops it. As `draw`."""
        if unknown := options.keys() - set(Drawing.__struct_fields__):
            known = ", ".join(Drawing.__struct_fields__)
            raise RequestError(f"no option {', '.join(sorted(unknown))}; there are {known}")
        try:
            asked = msgspec.convert(options, Drawing)
        except msgspec.ValidationError as error:
            raise RequestError(f"drawing: {error}") from None
        request = await asyncio.to_thread(self.prepare, prompt, asked, image)
        request = replace(request, adapters=tuple(adapters))
        async with aclosing(self.engine.work(request)) as outputs:
            async for output in outputs:
                final = output.finish == "stop"
                images = [] if "images" not in output.arrays else pictures(output.arrays["images"])
                told = list(output.generations) if final and adapters else None
                yield Progress(output.done, output.total, images, final, told)

    def prepare(self, prompt: str, asked: Drawing, image: Any) -> JobRequest:
        asked.check()
        if not prompt.strip():
            raise RequestError("the prompt is empty", param="prompt")
        if len(prompt) > MAX_PROMPT:
            raise RequestError(
                f"the prompt has {len(prompt)} characters; at most {MAX_PROMPT}", param="prompt"
            )
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        chosen = {
            n: getattr(asked, n) for n in ("width", "height", "steps", "guidance", "strength")
        }
        given: Mapping[str, Any] = {n: x for n, x in chosen.items() if x is not None}
        values = self.inputs.drawing(prompt, asked.second_prompt, given)
        values |= {"seeds": [seed + i for i in range(asked.n)], "previews": asked.previews}
        arrays = {} if image is None else {"image": Array.of(pixels_of(image, values))}
        return JobRequest(id=secrets.token_hex(12), model=self.name, values=values, arrays=arrays)


def pictures(array: Array) -> list[Image]:
    """PIL images of uint8 [n, height, width, 3]."""
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in array.numpy()]


def pixels_of(image: Any, values: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """uint8 [height, width, 3] of a PIL image, at the size that is drawn."""
    import numpy as np

    size = (values["width"], values["height"])
    return np.asarray(image.convert("RGB").resize(size))

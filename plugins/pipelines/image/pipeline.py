"""Image generation: a request is a job of the engine, and its slices report progress."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ostro import Array, Inputs, JobRequest, resolve
from ostro.errors import RequestError
from ostro.pipelines import AdapterRef, AsyncEngine, ImageProgress, ImageUsage, ServedModel

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_IMAGES = 10
MAX_PROMPT = 32_000
"""The largest number of characters of a prompt."""
IMAGES = (None, None, None, 3)
"""The shape of the images of a job: [n, height, width, 3]."""
MAX_PIXELS = 2**25
"""The largest number of pixels of an image, whatever the model supports."""
RANGES = (
    ("n", 1, MAX_IMAGES),
    ("previews", 0, 50),
    ("seed", 0, 2**63 - 11),
    ("steps", 1, 10_000),
)
"""The least and the largest values of options; models have limits of their own."""


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a request besides the prompt; None selects the model's default.

    width and height in pixels; steps of denoising; guidance: scale of classifier-free guidance;
    seed of the first of `n` images, the others count up from it; previews: number of intermediate
    images; strength: share of an initial image that is denoised again, 0..1.
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
        """Raise RequestError for values out of range."""
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name}={value} is not within {low}..{high}", param=name)


class Images:
    """Generates images with one model. Prepares requests outside of the event loop."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        self.model, self.engine, self.name = model, engine, model.name
        assert model.media_worker is not None, "architectures of the task draw have inputs"
        self.media_worker = model.media_worker

    @cached_property
    def inputs(self) -> Inputs:
        """The architecture's Inputs, which prepare prompts."""
        assert self.model.architecture.inputs is not None, (
            "architectures of the task draw have inputs"
        )
        inputs: Inputs = resolve(self.model.architecture.inputs)(
            self.model.raw_config, self.model.path
        )
        return inputs

    async def draw(
        self,
        prompt: str,
        *,
        image: Any = None,
        adapters: Sequence[AdapterRef] = (),
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> list[Image]:
        """Generate images of a prompt.

        `options` are the fields of `Drawing`, `image` is a PIL image to start from, or the bytes
        of a file; it is resized to the size of the result. `progress` is called with (slices done,
        all slices, previews). Raises RequestError.
        """
        work = self.finish(prompt, image=image, adapters=adapters, progress=progress, **options)
        return (await work).images

    async def finish(
        self,
        prompt: str,
        *,
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> ImageProgress:
        """The final progress of a request. Arguments as `draw`."""
        last = ImageProgress(0, 0)
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
    ) -> AsyncGenerator[ImageProgress, None]:
        """The progress of a request; closing the generator stops it. Arguments as `draw`."""
        if unknown := options.keys() - set(Drawing.__struct_fields__):
            known = ", ".join(Drawing.__struct_fields__)
            raise RequestError(
                f"unknown option {', '.join(sorted(unknown))}; expected one of {known}"
            )
        try:
            drawing = msgspec.convert(options, Drawing)
        except msgspec.ValidationError as error:
            raise RequestError(f"drawing: {error}") from None
        work = partial(self.prepare, prompt, drawing, image)
        request, usage = await (
            asyncio.to_thread(work) if image is None else self.media_worker.run(work)
        )
        request = replace(request, adapters=tuple(adapters))
        previews = 0
        async with aclosing(self.engine.work(request)) as outputs:
            async for output in outputs:
                final = output.finish == "stop"
                images = []
                if final or ("images" in output.arrays and previews < drawing.previews):
                    pixels = self.model.job_array(output.arrays, "images", "|u1", IMAGES)
                    images = pil_images(pixels)
                    previews += 1
                generations = list(output.generations) if final and adapters else None
                yield ImageProgress(output.done, output.total, images, final, generations, usage)

    def prepare(self, prompt: str, drawing: Drawing, image: Any) -> tuple[JobRequest, ImageUsage]:
        drawing.check()
        if drawing.strength is not None and image is None:
            raise RequestError("strength requires an image to start from", param="strength")
        if not prompt.strip():
            raise RequestError("the prompt is empty", param="prompt")
        if len(prompt) > MAX_PROMPT:
            raise RequestError(
                f"the prompt has {len(prompt)} characters; at most {MAX_PROMPT}", param="prompt"
            )
        seed = secrets.randbits(32) if drawing.seed is None else drawing.seed
        chosen = {
            n: getattr(drawing, n) for n in ("width", "height", "steps", "guidance", "strength")
        }
        given: Mapping[str, Any] = {n: x for n, x in chosen.items() if x is not None}
        values = self.inputs.drawing(prompt, drawing.second_prompt, given)
        values |= {"seeds": [seed + i for i in range(drawing.n)], "previews": drawing.previews}
        check_size(values["width"], values["height"])
        text, patches = self.inputs.count_tokens(
            prompt, drawing.second_prompt, values["width"], values["height"]
        )
        usage = ImageUsage(text, 0 if image is None else patches, patches)
        arrays = {}
        if image is not None:
            size = (values["width"], values["height"])
            arrays["image"] = Array.of(resized_pixels(self.open(image), size))
        id = secrets.token_hex(12)
        return JobRequest(id=id, model=self.name, values=values, arrays=arrays), usage

    def open(self, image: Any) -> Image:
        """A PIL image, from the bytes of a file if it is not one already."""
        from PIL import Image

        if not isinstance(image, bytes):
            return image
        return Image.fromarray(self.media_worker.look(image))


def check_size(width: int, height: int) -> None:
    """Raise RequestError for an image that is empty or larger than any model supports.

    It protects the server, which resizes an initial image before the model checks the request.
    """
    if min(width, height) < 1 or width * height > MAX_PIXELS:
        raise RequestError(
            f"width={width} x height={height} is not within 1..{MAX_PIXELS} pixels", param="size"
        )


def pil_images(array: Array) -> list[Image]:
    """PIL images of uint8 [n, height, width, 3]."""
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in array.numpy()]


def resized_pixels(image: Image, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A PIL image as uint8 [height, width, 3], resized to (width, height)."""
    import numpy as np

    return np.asarray(image.convert("RGB").resize(size))

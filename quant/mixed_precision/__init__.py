"""Mixed precision: a format for each weight, so that the model keeps to a budget of memory.

`--quant 4.5bpw` and `--quant 6GB` are answered here, as `--quant q4k` is by a quantizer.
"""

from collections.abc import Iterable

from ostro import Planner, hookimpl
from ostro.quant.mixed_precision.budget import is_budget


@hookimpl
def ostro_planners() -> Iterable[Planner]:
    yield Planner(
        name="mixed_precision",
        claims=is_budget,
        plan=f"{__name__}.search:plan",
        usage="a size (6GB) or bits per weight (4.5bpw)",
    )

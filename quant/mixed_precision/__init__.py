"""Mixed precision: choose a format for each weight within a budget (`--quant 4.5bpw`, `6GB`)."""

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

"""Compiled code of several runs in one process: used again, and dropped before it is too much."""

import torch

from protosphere.recipes.devices import resolve_device
from protosphere.recipes.schema import Recipe

# Torch keeps eight versions of a function and then fails; runs may add more than one.
_MAX_FORMS = 4
# Sections whose values are constants in compiled code; those of optimizer and schedule are not.
_SECTIONS = {"data", "augmentation", "model", "loss", "training"}


class CompiledCode:
    """The forms of the training step that this process has compiled.

    Runs that differ only in the sections of the optimizer and the schedule, or in their seed, use
    the same code. Each other form is compiled once and kept; before there are too many for torch,
    all are dropped.

    Args:
        device: Where runs are trained.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(resolve_device(device))
        self._forms: set[str] = set()

    def prepare(self, recipe: Recipe) -> None:
        """Make room for the code of a run. Call it before each run.

        Args:
            recipe: Recipe of the run.
        """
        compiles = recipe.training.compile
        if compiles is False or (compiles == "auto" and self.device.type != "cuda"):
            return
        form = recipe.model_dump_json(include=_SECTIONS)
        if form not in self._forms and len(self._forms) == _MAX_FORMS:
            torch.compiler.reset()
            self._forms.clear()
        self._forms.add(form)

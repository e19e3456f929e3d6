"""Which runs a comparison consists of: recipes and run folders, grouped by recipe without seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protosphere.recipes.loading import read_recipe, read_run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, find_difference
from protosphere.runs import RunFolder, RunFolderError, find_run_folders
from protosphere.runs.checkpoints import has_checkpoint
from protosphere.runs.recipe_keys import flatten, is_compared
from protosphere.studies.common import check_targets_exist, is_run_target

FIRST_SEED = 42
DEFAULT_SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + 5))
_SEED_LIMIT = 2**31
# Method and seed.
RunKey = tuple[str, int]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison.

    Attributes:
        method: Name of the method.
        recipe: The recipe, with the seed of the run.
        folder: The run folder.
        is_given: Whether the run folder was given: it is read and never trained.
    """

    method: str
    recipe: Recipe
    folder: Path
    is_given: bool

    @property
    def key(self) -> RunKey:
        """Method and seed of the run."""
        return self.method, self.recipe.seed


@dataclass(frozen=True)
class ComparisonPlan:
    """All runs of a comparison.

    Attributes:
        recipes: The recipe of each method by its name, in the order of the targets.
        runs: The runs, by method and seed.
        baseline: Name of the method that the others are compared with.
        seeds: All seeds.
    """

    recipes: dict[str, Recipe]
    runs: tuple[PlannedRun, ...]
    baseline: str
    seeds: tuple[int, ...]

    @property
    def is_paired(self) -> bool:
        """Whether another method has a seed in common with the baseline: there is a difference."""
        seeds = {run.recipe.seed for run in self.runs if run.method == self.baseline}
        return any(run.method != self.baseline and run.recipe.seed in seeds for run in self.runs)


@dataclass
class _Method:
    """A recipe without its seed, while targets are read."""

    recipe: Recipe
    targets: list[str] = field(default_factory=list)
    given: dict[int, Path] = field(default_factory=dict)
    is_trained: bool = False
    name: str = ""


def plan_comparison(
    targets: Sequence[str],
    *,
    out: Path,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    baseline: str | None = None,
) -> ComparisonPlan:
    """Read recipes and run folders, and decide which runs a comparison needs.

    Nothing is trained or written. Runs whose recipes differ in nothing but the seed (and in where
    data are and how runs are watched) are of one method.

    Args:
        targets: Names of recipes, YAML files, run folders, or folders that contain run folders.
        out: Folder for the runs that are trained, OUT/RECIPE/seed-N.
        seeds: Seeds of every method. None trains recipes with five seeds, and compares run folders
            as they are.
        overrides: Values of the recipes to replace, each ``dotted.path=value``.
        baseline: Method that the others are compared with: its name, or the target that it was
            given as. None for the first one.

    Raises:
        RecipeError: A target is no recipe, or an override is not valid.
        RunFolderError: A folder is no run, or holds a run of another recipe.
        ValueError: Seeds or baseline are not valid, or two different recipes have one name.
    """
    if not targets:
        raise ValueError("at least one recipe or run folder must be given to compare")
    _check_seeds(seeds)
    if any(override.partition("=")[0].strip() == "seed" for override in overrides):
        raise ValueError("seed must not be overridden; --seeds or --seed-list choose the seeds")
    methods = _read_methods(targets, overrides)
    for method in methods:
        method.is_trained = method.is_trained or seeds is not None
    _set_names(methods)
    trained = DEFAULT_SEEDS if seeds is None else tuple(seeds)
    is_any_trained = any(method.is_trained for method in methods)
    given = {seed for method in methods for seed in method.given}
    all_seeds = tuple(dict.fromkeys([*(trained if is_any_trained else ()), *sorted(given)]))
    runs = tuple(
        run for method in methods for run in _plan_runs(method, out, all_seeds, set(trained))
    )
    _check_folders(runs)
    return ComparisonPlan(
        {method.name: method.recipe for method in methods},
        runs,
        _find_baseline(methods, baseline),
        all_seeds,
    )


def _check_seeds(seeds: Sequence[int] | None) -> None:
    if seeds is None:
        return
    if not seeds:
        raise ValueError("seeds must hold at least one seed, got none")
    for seed in seeds:
        if not 0 <= seed < _SEED_LIMIT:
            raise ValueError(f"seeds must be at least 0 and less than 2³¹, got {seed}")
        if list(seeds).count(seed) > 1:
            raise ValueError(f"seeds must be different, got {seed} twice")


def _read_methods(targets: Sequence[str], overrides: Sequence[str]) -> list[_Method]:
    check_targets_exist(targets)
    methods: list[_Method] = []
    for target in targets:
        if not is_run_target(target):
            method = _find_method(methods, read_recipe(target, overrides))
            method.is_trained = True
            method.targets.append(target)
            continue
        for folder in find_run_folders(target):
            try:
                recipe = read_run_recipe(RunFolder(folder), overrides)
            except RecipeError as error:
                raise RunFolderError(str(error)) from None
            method = _find_method(methods, recipe)
            method.targets.append(target)
            other = method.given.setdefault(recipe.seed, folder)
            if other.resolve() != folder.resolve():
                raise RunFolderError(
                    f"runs of one recipe must have different seeds; {other} and {folder} both "
                    f"have seed {recipe.seed}"
                )
    return methods


def _find_method(methods: list[_Method], recipe: Recipe) -> _Method:
    for method in methods:
        if find_difference(with_seed(method.recipe, recipe.seed), recipe) is None:
            return method
    methods.append(_Method(recipe))
    return methods[-1]


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return a copy of a recipe with another seed."""
    return recipe.model_copy(update={"seed": seed})


def _set_names(methods: Sequence[_Method]) -> None:
    """Name methods after their recipes, with the keys that differ where names are equal."""
    for method in methods:
        same = [other for other in methods if other.recipe.name == method.recipe.name]
        if len([other for other in same if other.is_trained]) > 1:
            first, second = [other.targets[0] for other in same if other.is_trained][:2]
            raise ValueError(
                f"recipes must have different names, {first} and {second} are both "
                f"{method.recipe.name}"
            )
        method.name = method.recipe.name
        if len(same) > 1:
            settings = [_settings(other.recipe) for other in same]
            own = _settings(method.recipe)
            keys = [
                key
                for key in dict.fromkeys(key for one in settings for key in one)
                if any(one.get(key) != settings[0].get(key) for one in settings)
            ]
            method.name += f" ({', '.join(f'{key}={own[key]}' for key in keys if key in own)})"


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of a recipe that can tell two methods of one name apart."""
    content = flatten(recipe.model_dump(mode="json", exclude={"seed"}))
    return {key: value for key, value in content.items() if is_compared(key)}


def _plan_runs(
    method: _Method, out: Path, seeds: Sequence[int], trained: set[int]
) -> Iterator[PlannedRun]:
    _check_name(method)
    for seed in seeds:
        recipe = with_seed(method.recipe, seed)
        if seed in method.given:
            yield PlannedRun(method.name, recipe, method.given[seed], is_given=True)
        elif method.is_trained and seed in trained:
            folder = out / recipe.name / f"seed-{seed}"
            yield PlannedRun(method.name, recipe, folder, is_given=False)


def _check_name(method: _Method) -> None:
    name = method.recipe.name
    if method.is_trained and (Path(name).name != name or name in (".", "..")):
        raise ValueError(f"the name of a recipe must be usable as that of a folder, got {name!r}")


def _check_folders(runs: Sequence[PlannedRun]) -> None:
    """Refuse recipes whose folder holds a run of another recipe."""
    for run in runs:
        folder = RunFolder(run.folder)
        if run.is_given or not (folder.metrics.exists() or has_checkpoint(folder.checkpoints)):
            continue
        if changed := find_difference(read_run_recipe(folder), run.recipe):
            raise RunFolderError(
                f"{folder.path} holds a run of another recipe: {changed}; choose another --out"
            )


def _find_baseline(methods: Sequence[_Method], wanted: str | None) -> str:
    if wanted is None:
        return methods[0].name
    for method in methods:
        if wanted == method.name or Path(wanted) in map(Path, method.targets):
            return method.name
    names = ", ".join(method.name for method in methods)
    raise ValueError(f"baseline must be one of the compared recipes ({names}), got {wanted}")

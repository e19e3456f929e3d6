"""Check that the data of a table of the paper are there, before anything is trained."""

from protosphere.data.corruption_files import open_corruption_files
from protosphere.data.corruptions import CORRUPTIONS
from protosphere.data.splits import DataError
from protosphere.recipes.build import load_dataset
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.metadata import read_class_names
from protosphere.studies.reproduce import TargetPlan
from protosphere.studies.reproduce_readings import RunReader
from protosphere.studies.reproduce_runs import PlannedRun, get_base_recipe


def check_data(plan: TargetPlan, reader: RunReader, *, download: bool = False) -> tuple[str, ...]:
    """Check that all data are there, before anything is trained.

    Args:
        plan: What the table needs.
        reader: The runs.
        download: Whether missing data are downloaded.

    Returns:
        Sentences about data that cannot be those of the paper.

    Raises:
        DataError: Some are not; the message says what needs them.
    """
    checked: dict[str, tuple[str, ...]] = {}
    warnings: dict[str, None] = {}
    for run in plan.runs.values():
        data = run.run.data
        if run.is_complete:
            try:
                names = tuple(read_class_names(RunFolder(run.folder)))
            except RunFolderError:  # Records that were kept without the classes.
                continue
        else:
            section = data.title + run.recipe.data.model_dump_json()
            names = checked.get(section) or _read_names(plan, run, download=download)
            checked[section] = names
        if len(names) != data.num_classes:
            warnings[
                f"the data for {data.title} have {len(names)} classes, not {data.num_classes}: "
                "they are not the paper's"
            ] = None
        if not run.is_complete or run.has_weights:
            _check_other_images(plan, reader, names)
    return tuple(warnings)


def _read_names(plan: TargetPlan, run: PlannedRun, *, download: bool) -> tuple[str, ...]:
    """Return the names of the classes of a run that is not trained yet."""
    try:
        dataset = load_dataset(run.recipe, download=download)
    except DataError as error:
        data = run.run.data
        is_elsewhere = run.recipe.data.source != get_base_recipe(run.run.recipe).data.source
        needs = data.title if is_elsewhere else f"{data.title} ({data.source})"
        raise DataError(
            f"{plan.target.name} needs {needs}: {error}; {_advice(plan, run)}"
        ) from None
    return dataset.train.class_names


def _check_other_images(plan: TargetPlan, reader: RunReader, class_names: tuple[str, ...]) -> None:
    """Check the images that benchmarks of a run need."""
    for name in plan.transfer_sets:
        reader.transfer_set(name)
    if reader.corruption_folder is not None:
        open_corruption_files(
            reader.corruption_folder, class_names=class_names, corruptions=CORRUPTIONS
        )


def _advice(plan: TargetPlan, missing: PlannedRun) -> str:
    """What can be done about data that are missing."""
    title = missing.run.data.title
    others = [
        column
        for column in plan.target.columns
        if all(
            run.data.title != title
            for cell in plan.target.cells
            if cell.column == column
            for run in (*cell.runs, *cell.reading.other_runs)
        )
    ]
    hours = plan.hours_left
    cost = "" if hours is None else f" (about {hours:,.1f} hours of training on one H200)"
    text = f"--dry-run prints what all of it costs{cost} and the commands that run it elsewhere"
    if others:
        text += f"; {title} is not needed with --column {' or '.join(others)}"
    return text

"""Several processes that compare into one folder: a run in use is left to the other process."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protosphere.recipes.loading import read_run_recipe
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder
from protosphere.runs.comparison import Comparison, read_comparison, write_comparison
from protosphere.runs.folder import RunFolderInUseError
from protosphere.studies import compare
from protosphere.studies.compare import NoCompleteRunError, run_comparison
from support.short_runs import few_digits, logged_run

SETTINGS = [*few_digits(), "schedule.epochs=1"]
TARGETS = ["digits-ce", "digits-nonl"]
KEYS = [(method, seed) for method in TARGETS for seed in (42, 43)]


class Processes:
    """A comparison of two recipes with two seeds, and another process that has one of the runs.

    Args:
        out: Folder of the comparison.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.lines: list[str] = []
        self.trained: list[str] = []
        self.other = ExitStack()

    def folder(self, method: str, seed: int) -> Path:
        return self.out / method / f"seed-{seed}"

    def use(self, method: str, seed: int) -> None:
        """Let the other process use a run; within one process, a second lock is refused too."""
        self.other.enter_context(RunFolder(self.folder(method, seed)).lock())

    def complete(self, method: str, seed: int, *settings: str) -> None:
        """Write a complete run, as training leaves it."""
        logged_run(
            self.folder(method, seed),
            {"accuracy": [(1, 0.5 + seed / 1000)]},
            *SETTINGS,
            f"seed={seed}",
            *settings,
            recipe=method,
        )

    def train(self, recipe: Recipe, folder: Path) -> bool:
        with RunFolder(folder).lock():
            self.trained.append(str(folder.relative_to(self.out)))
        self.complete(recipe.name, recipe.seed)
        return True

    def compare(self) -> Comparison:
        return run_comparison(
            TARGETS,
            out=self.out,
            seeds=[42, 43],
            overrides=SETTINGS,
            train=self.train,
            report=self.lines.append,
        )


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path / "out")
    with found.other:
        yield found


def _keys(comparison: Comparison) -> list[tuple[str, int]]:
    return [(run.method, run.seed) for run in comparison.runs]


def test_a_run_in_use_is_left_to_the_other_process(processes: Processes) -> None:
    processes.use("digits-ce", 43)
    comparison = processes.compare()
    assert comparison.failures == ()
    assert [(run.method, run.seed) for run in comparison.pending] == [("digits-ce", 43)]
    assert processes.trained == ["digits-ce/seed-42", "digits-nonl/seed-42", "digits-nonl/seed-43"]
    folder = processes.folder("digits-ce", 43)
    with pytest.raises(RunFolderInUseError) as error, RunFolder(folder).lock():
        pass
    assert f"digits-ce, seed 43 is left to another process: {error.value}" in processes.lines
    assert processes.lines[-1] == (
        "1 run is still in use by another process; the process that ends last writes all runs to "
        "comparison.json"
    )


def test_a_run_that_the_other_process_has_completed_is_read(processes: Processes) -> None:
    processes.use("digits-ce", 42)
    train = processes.train

    def train_and_complete(recipe: Recipe, folder: Path) -> bool:
        if (recipe.name, recipe.seed) == ("digits-nonl", 43):
            processes.complete("digits-ce", 42)
            processes.other.close()
        return train(recipe, folder)

    processes.train = train_and_complete  # type: ignore[method-assign]
    comparison = processes.compare()
    assert _keys(comparison) == KEYS
    assert "digits-ce/seed-42" not in processes.trained
    assert read_comparison(processes.out / "comparison.json") == comparison


def test_a_run_that_is_completed_before_its_turn_is_not_trained(processes: Processes) -> None:
    train = processes.train

    def train_and_complete(recipe: Recipe, folder: Path) -> bool:
        if not processes.trained:
            processes.complete("digits-nonl", 43)
        return train(recipe, folder)

    processes.train = train_and_complete  # type: ignore[method-assign]
    assert _keys(processes.compare()) == KEYS
    assert "digits-nonl/seed-43" not in processes.trained
    assert "digits-nonl, seed 43 is complete: another process has trained it" in processes.lines


def test_a_run_that_the_other_process_has_given_up_is_trained_in_the_end(
    processes: Processes,
) -> None:
    processes.use("digits-ce", 42)
    train = processes.train

    def train_and_give_up(recipe: Recipe, folder: Path) -> bool:
        if recipe.name == "digits-nonl":
            processes.other.close()
        return train(recipe, folder)

    processes.train = train_and_give_up  # type: ignore[method-assign]
    assert _keys(processes.compare()) == KEYS
    assert processes.trained[-1] == "digits-ce/seed-42"


def test_a_run_of_another_recipe_is_not_taken_for_a_result(processes: Processes) -> None:
    processes.use("digits-ce", 42)
    train = processes.train

    def train_and_complete(recipe: Recipe, folder: Path) -> bool:
        if (recipe.name, recipe.seed) == ("digits-nonl", 42):
            processes.complete("digits-ce", 42, "optimizer.lr=0.5")
            processes.other.close()
        return train(recipe, folder)

    processes.train = train_and_complete  # type: ignore[method-assign]
    comparison = processes.compare()
    recipe = read_run_recipe(RunFolder(processes.folder("digits-ce", 42)))
    assert recipe.optimizer.lr == 0.5
    assert ("digits-ce", 42) not in _keys(comparison)
    assert [(run.method, run.seed) for run in comparison.failures] == [("digits-ce", 42)]


def test_all_runs_in_use_are_one_sentence(processes: Processes) -> None:
    for key in KEYS:
        processes.use(*key)
    with pytest.raises(NoCompleteRunError, match="no run is complete yet; the same command cont"):
        processes.compare()
    assert len(processes.lines) == 2 * len(KEYS) + 1
    assert processes.lines[-1].startswith("4 runs are still in use by other processes; ")


def test_a_process_writes_while_others_wait(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock covers reading what others have completed: no file replaces a newer one."""
    locked = []

    def write(path: Path, comparison: Comparison) -> None:
        with (path.parent / ".comparison.lock").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(len(comparison.runs))
        write_comparison(path, comparison)

    monkeypatch.setattr(compare, "write_comparison", write)
    processes.compare()
    assert locked == [1, 2, 3, 4, 4]
    with (processes.out / ".comparison.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_complete_run_that_cannot_be_read_has_failed(processes: Processes) -> None:
    def train(recipe: Recipe, folder: Path) -> bool:
        processes.complete(recipe.name, recipe.seed)
        if (recipe.name, recipe.seed) == KEYS[0]:
            (folder / "classes.json").write_text("damaged")
        return True

    comparison = run_comparison(
        TARGETS, out=processes.out, seeds=[42, 43], overrides=SETTINGS, train=train
    )
    assert _keys(comparison) == KEYS[1:]
    assert [(run.method, run.seed) for run in comparison.failures] == KEYS[:1]

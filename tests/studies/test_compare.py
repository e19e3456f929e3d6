"""Comparisons over seeds: runs that are trained, resumed and read; what is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from protosphere.recipes import build
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import has_checkpoint, last_step
from protosphere.runs.comparison import read_comparison
from protosphere.studies.common import describe_error
from protosphere.studies.compare import NoCompleteRunError, run_comparison
from support.short_runs import few_digits

QUICK = [*few_digits(), "schedule.epochs=2", "checkpoint.every=1", "evaluation.metrics=cheap"]
TARGETS = ["digits-ce", "digits-nonl"]


class KilledError(BaseException):
    """Nothing catches it to clean up, as nothing does after SIGKILL."""


@pytest.fixture(scope="module")
def _one_thread() -> Iterator[None]:
    """On a busy machine, waiting for threads takes longer than these small computations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, _one_thread: None) -> Path:
    """A comparison of two recipes with two seeds, trained without interruption."""
    out = tmp_path_factory.mktemp("comparison")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_COMMIT", "0123456789ab")
        run_comparison(TARGETS, out=out, seeds=[42, 43], overrides=QUICK)
    return out


def _killed_in_epoch(epoch: float, seed: int) -> object:
    """Return a trainer that is killed when the run of a seed reaches an epoch."""

    def train(recipe: Recipe, folder: Path) -> bool:
        dataset = build.load_dataset(recipe)
        for event in run_recipe(recipe, folder, dataset, start="resume", report_every=1):
            if recipe.seed == seed and event.progress.epoch >= epoch:
                raise KilledError
        return True

    return train


def test_the_file_has_every_value_and_is_read_without_loss(out: Path) -> None:
    comparison = read_comparison(out / "comparison.json")
    assert [(run.method, run.seed) for run in comparison.runs] == [
        ("digits-ce", 42),
        ("digits-ce", 43),
        ("digits-nonl", 42),
        ("digits-nonl", 43),
    ]
    for run in comparison.runs:
        record = RunFolder(out / run.folder).last_evaluation()
        assert record is not None
        assert run.folder == f"{run.method}/seed-{run.seed}"
        assert run.values == {name: record[name] for name in run.values}
        assert set(record) - set(run.values) == {"kind", "step", "epoch", "split"}
    assert (comparison.split, comparison.num_images, comparison.num_classes) == ("test", 160, 10)
    assert comparison.seeds == (42, 43)
    assert comparison.methods[0].recipe["schedule"]["epochs"] == 2
    assert "seed" not in comparison.methods[0].recipe
    assert [machine["commit"] for machine in comparison.machines] == ["0123456789ab"]
    assert comparison.to_json() == json.loads((out / "comparison.json").read_text())


@pytest.mark.long
def test_a_comparison_that_was_killed_and_continued_gives_the_same_file(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMIT", "0123456789ab")
    # In the second epoch of the first run, after its checkpoint; in the first one of the third run.
    for epoch, seed in ((1.5, 42), (0.5, 43)):
        with pytest.raises(KilledError):
            run_comparison(
                TARGETS,
                out=tmp_path,
                seeds=[42, 43],
                overrides=QUICK,
                train=_killed_in_epoch(epoch, seed),  # type: ignore[arg-type]
            )
    partial = read_comparison(tmp_path / "comparison.json")
    assert [run.seed for run in partial.runs] == [42, 42]
    assert [(run.method, run.seed) for run in partial.pending] == [
        ("digits-ce", 43),
        ("digits-nonl", 43),
    ]
    lines: list[str] = []
    run_comparison(TARGETS, out=tmp_path, seeds=[42, 43], overrides=QUICK, report=lines.append)
    assert (tmp_path / "comparison.json").read_bytes() == (out / "comparison.json").read_bytes()
    assert lines == [
        "2 of 4 runs are complete",
        f"Run 3 of 4: digits-ce, seed 43, into {tmp_path / 'digits-ce/seed-43'}",
        f"Run 4 of 4: digits-nonl, seed 43, into {tmp_path / 'digits-nonl/seed-43'}",
    ]


def _refuse_to_train(recipe: Recipe, folder: Path) -> bool:
    raise AssertionError(f"{folder} is trained")


def test_complete_runs_are_not_trained_again_and_may_have_lost_their_weights(
    out: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    for folder in moved.glob("*/*/checkpoints"):
        shutil.rmtree(folder)
    (moved / "comparison.json").unlink()
    run_comparison(TARGETS, out=moved, seeds=[42, 43], overrides=QUICK, train=_refuse_to_train)
    assert (moved / "comparison.json").read_bytes() == (out / "comparison.json").read_bytes()


def test_a_run_that_was_killed_before_its_last_checkpoint_is_resumed(
    out: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    checkpoints = moved / "digits-ce/seed-43/checkpoints"
    last = last_step(checkpoints)
    shutil.rmtree(checkpoints / f"step-{last:09d}")
    trained: list[str] = []

    def train(recipe: Recipe, folder: Path) -> bool:
        trained.append(str(folder.relative_to(moved)))
        for _ in run_recipe(recipe, folder, build.load_dataset(recipe), start="resume"):
            pass
        return True

    run_comparison(TARGETS, out=moved, seeds=[42, 43], overrides=QUICK, train=train)
    assert trained == ["digits-ce/seed-43"]
    assert last_step(checkpoints) == last


def test_a_run_that_fails_is_recorded_and_the_others_are_trained(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "digits-ce", tmp_path / "digits-ce")
    shutil.copytree(out / "digits-nonl/seed-42", tmp_path / "digits-nonl/seed-42")
    lines: list[str] = []

    def train(recipe: Recipe, folder: Path) -> bool:
        if recipe.seed == 43:
            raise RuntimeError("CUDA error: an illegal memory access\nCompile with ...")
        shutil.copytree(out / "digits-nonl/seed-42", folder)
        text = (folder / "recipe.yaml").read_text().replace("seed: 42", f"seed: {recipe.seed}")
        (folder / "recipe.yaml").write_text(text)
        return True

    comparison = run_comparison(
        TARGETS, out=tmp_path, seeds=[43, 42], overrides=QUICK, train=train, report=lines.append
    )
    (failure,) = comparison.failures
    assert failure.method == "digits-nonl"
    assert failure.seed == 43
    assert failure.folder == "digits-nonl/seed-43"
    assert failure.error == "RuntimeError: CUDA error: an illegal memory access"
    assert lines[-1] == f"digits-nonl, seed 43 has failed: {failure.error}"
    difference = comparison.difference("digits-nonl", "accuracy")
    assert difference is not None
    assert (difference.seeds, difference.std, difference.outcome) == ((42,), None, None)
    (best,) = [row for row in comparison.best if row.metric == "accuracy"]
    assert best.seeds == (42,)
    assert read_comparison(tmp_path / "comparison.json") == comparison


def test_errors_are_one_line() -> None:
    assert describe_error(MemoryError()) == "out of memory"
    assert describe_error(torch.OutOfMemoryError("Tried to allocate 2 GiB")) == "out of memory"
    assert describe_error(RunFolderError("a is in use.")) == "a is in use"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(TypeError()) == "TypeError: no message"
    assert describe_error(FileNotFoundError(2, "No such", "x")) == "cannot use x: no such"


def test_a_comparison_that_is_stopped_says_what_is_missing(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "digits-ce", tmp_path / "digits-ce")
    comparison = run_comparison(
        TARGETS, out=tmp_path, seeds=[42, 43], overrides=QUICK, train=lambda *_: False
    )
    assert [(run.method, run.seed) for run in comparison.pending] == [
        ("digits-nonl", 42),
        ("digits-nonl", 43),
    ]
    assert (comparison.differences, comparison.best) == ((), ())
    with pytest.raises(NoCompleteRunError, match="no run is complete yet; the same command"):
        run_comparison(
            TARGETS, out=tmp_path / "new", seeds=[1], overrides=QUICK, train=lambda *_: False
        )
    assert not (tmp_path / "new" / "comparison.json").exists()


def test_if_all_runs_fail_the_first_error_is_given(tmp_path: Path) -> None:
    def train(recipe: Recipe, folder: Path) -> bool:
        raise ValueError(f"no memory for seed {recipe.seed}")

    message = r"digits-ce, seed 1: no memory for seed 1 \(1 more have"
    with pytest.raises(NoCompleteRunError, match=message):
        run_comparison(["digits-ce"], out=tmp_path / "out", seeds=[1, 2], train=train)


@pytest.mark.bad_input
def test_recipes_with_different_data_are_refused_before_training(tmp_path: Path) -> None:
    recipe = tmp_path / "long-tail.yaml"
    recipe.write_text(read_recipe("digits-nonl", ["data.long_tail=0.5", "name=tail"]).to_yaml())
    with pytest.raises(RunFolderError) as error:
        run_comparison(
            ["digits-ce", str(recipe)], out=tmp_path / "out", seeds=[1], train=_refuse_to_train
        )
    assert str(error.value) == (
        "compared recipes must have the same data; digits-ce and tail have different training "
        "images"
    )
    recipe.write_text(
        read_recipe("digits-nonl", ["data.validation_fraction=0.1", "name=held"]).to_yaml()
    )
    with pytest.raises(RunFolderError, match="and held have different splits to evaluate on"):
        run_comparison(
            ["digits-ce", str(recipe)], out=tmp_path / "out", seeds=[1], train=_refuse_to_train
        )
    assert not (tmp_path / "out").exists()


def test_a_sampler_does_not_change_the_data(out: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "balanced.yaml"
    settings = [*QUICK, "data.sampler=balanced", "name=balanced"]
    recipe.write_text(read_recipe("digits-nonl", settings).to_yaml())
    shutil.copytree(out / "digits-ce", tmp_path / "digits-ce")
    comparison = run_comparison(
        ["digits-ce", str(recipe)], out=tmp_path, seeds=[42], overrides=QUICK
    )
    assert [run.method for run in comparison.runs] == ["digits-ce", "balanced"]
    assert has_checkpoint(tmp_path / "balanced/seed-42/checkpoints")


def test_missing_seeds_of_a_run_folder_are_trained_beside_it(out: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    shutil.copytree(out / "digits-ce/seed-42", given)
    only = run_comparison([str(given)], out=tmp_path / "out", train=_refuse_to_train)
    assert [(run.seed, run.folder) for run in only.runs] == [(42, given.as_posix())]
    more = run_comparison([str(given)], out=tmp_path / "out", seeds=[42, 43])
    assert [run.folder for run in more.runs] == [given.as_posix(), "digits-ce/seed-43"]
    assert more.runs[1].values == read_comparison(out / "comparison.json").runs[1].values


def test_the_same_seed_gives_the_same_order_and_initial_backbone(out: Path) -> None:
    """What is paired: see docs/comparing.md."""

    def start(name: str, seed: int) -> tuple[torch.Tensor, list[int]]:
        recipe = read_recipe(name, [f"seed={seed}"])
        objective = build.create_objective(recipe, num_classes=10, in_channels=1)
        loader = build.create_loaders(recipe, build.load_dataset(recipe), "cpu")[0]
        (indices, *_) = next(iter(loader.batches(64, seed=recipe.seed, epoch=0)))
        weights = [weight.flatten() for weight in objective.encoder.parameters()]
        return torch.cat(weights).detach(), indices.tolist()

    weights, order = start("digits-ce", 42)
    for name, seed, is_same in (("digits-nonl", 42, True), ("digits-nonl", 43, False)):
        other_weights, other_order = start(name, seed)
        assert torch.equal(weights, other_weights) is is_same
        assert (order == other_order) is is_same


@pytest.mark.compiled
def test_the_compiler_has_room_for_the_steps_of_all_methods(out: Path, tmp_path: Path) -> None:
    import torch._dynamo

    targets = []
    for number in range(5):
        path = tmp_path / f"{number}.yaml"
        path.write_text(read_recipe("digits-ce", [*QUICK, f"name=ce-{number}"]).to_yaml())
        targets.append(str(path))
    limits = []

    def train(recipe: Recipe, folder: Path) -> bool:
        limits.append(torch._dynamo.config.recompile_limit)
        shutil.copytree(out / "digits-ce/seed-42", folder)
        return True

    with torch._dynamo.config.patch(recompile_limit=3):
        run_comparison(targets, out=tmp_path / "out", seeds=[42], train=train)
        assert torch._dynamo.config.recompile_limit == 3
    assert min(limits) >= 2 * 5

"""What the benchmark of training dynamics measures, by finite differences and plain loops."""

import json
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier
from protosphere.losses import CrossEntropyLoss, NormFaceLoss
from protosphere.recipes import reports, runner
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from protosphere.training import Objective, ParameterGroups, Schedule, TrainConfig
from support.short_runs import few_digits, logged_run

_STEP = 1e-6
_LR = 0.3


@pytest.fixture
def dynamics(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The benchmark; what it replaces in the package is restored."""
    monkeypatch.setattr(runner, "train", runner.train)
    monkeypatch.setattr(reports, "log_training", reports.log_training)
    return import_benchmark("dynamics")


def _objective(kind: str) -> Objective:
    """Two convolutions with batch norm and a head, in float64, so that differences are exact."""
    torch.manual_seed(3)
    encoder = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Conv2d(2, 3, 2),
        nn.BatchNorm2d(3),
        nn.Flatten(),
    )
    if kind == "ce":
        return Objective(encoder, LinearClassifier(12, 4), CrossEntropyLoss()).double()
    head = CosineClassifier(12, 4, temperature=0.2)
    return Objective(encoder, head, NormFaceLoss()).double()


def _batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(8)
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, 1], [2, 2, 1, 0, 1, 0, 0]])  # Class 3 has no image.
    images = torch.randn(2, 7, 1, 5, 5, generator=generator, dtype=torch.float64)
    return list(zip(images, labels, strict=True))


def _config(**settings: Any) -> TrainConfig:
    return TrainConfig(Schedule(_LR, 1), 7, **settings)


def _differences(compute: Callable[[], Tensor], values: Tensor) -> Tensor:
    """Return the gradient of a function with respect to a tensor, by central differences."""
    gradient = torch.zeros_like(values)
    with torch.no_grad():
        for index in range(values.numel()):
            ends = []
            for sign in (1, -1):
                values.view(-1)[index] += sign * _STEP
                ends.append(float(compute()))
                values.view(-1)[index] -= sign * _STEP
            gradient.view(-1)[index] = (ends[0] - ends[1]) / (2 * _STEP)
    return gradient


def _length(*tensors: Tensor) -> float:
    return math.sqrt(sum(x * x for tensor in tensors for x in tensor.flatten().tolist()))


@pytest.mark.parametrize("kind", ["ce", "normface"])
def test_gradient_norms_and_updates_are_those_of_finite_differences(
    dynamics: ModuleType, kind: str
) -> None:
    objective, batches = _objective(kind), _batches()
    config = _config(parameter_groups=ParameterGroups(head_lr_scale=0.5))
    measured = dynamics.measure(objective, batches, config, lr=_LR)
    gradients = [
        {
            name: _differences(partial(objective, *batch), p.data)
            for name, p in objective.named_parameters()
        }
        for batch in batches
    ]
    parameters = dict(objective.named_parameters())
    for part, prefix in (("backbone", "encoder."), ("head", "head.")):
        names = [name for name in parameters if name.startswith(prefix)]
        norms = [_length(*(one[name] for name in names)) for one in gradients]
        weights = _length(*(parameters[name] for name in names))
        assert measured[f"{part}_gradient_norm"] == pytest.approx(sum(norms) / 2, rel=1e-5)
        assert measured[f"{part}_weight_norm"] == pytest.approx(weights)
    updates, rates = [], []
    for name in ("encoder.0.weight", "encoder.3.weight"):
        norm, weight = sum(_length(one[name]) for one in gradients) / 2, _length(parameters[name])
        updates.append(_LR * norm / weight)
        rates.append(_LR / weight**2)
    assert measured["conv_relative_update"] == pytest.approx(sum(updates) / 2, rel=1e-5)
    assert measured["conv_effective_lr"] == pytest.approx(sum(rates) / 2)
    name = next(name for name in parameters if parameters[name] is objective.head.prototypes)
    updates, rates = [], []
    for index, row in enumerate(parameters[name]):
        norm = sum(_length(one[name][index]) for one in gradients) / 2
        updates.append(0.5 * _LR * norm / _length(row))
        rates.append(0.5 * _LR / _length(row) ** 2)
    expected = statistics.median(updates)
    assert measured["prototype_relative_update"] == pytest.approx(expected, rel=1e-5)
    assert measured["prototype_effective_lr"] == pytest.approx(statistics.median(rates))


def test_features_and_their_gradients_are_those_of_plain_loops(dynamics: ModuleType) -> None:
    objective, batches = _objective("normface"), _batches()
    measured = dynamics.measure(objective, batches, _config(), lr=_LR)
    prototypes = objective.head.prototypes.detach()
    lengths, losses, accuracies, fractions, effective = [], [], [], [], []
    sums = torch.zeros(4, 12, dtype=torch.float64)
    for images, labels in batches:
        with torch.no_grad():
            features = objective.encoder(images)
        losses.append(objective.loss(features, objective.head, labels).item())
        compute = partial(objective.loss, features, objective.head, labels)
        gradient = _differences(compute, features)
        norms, hits = [_length(row) for row in gradient], []
        for feature, label in zip(features, labels.tolist(), strict=True):
            lengths.append(_length(feature))
            sums[label] += feature / _length(feature)
            cosines = [float(feature @ row) / _length(feature) / _length(row) for row in prototypes]
            hits.append(cosines.index(max(cosines)) == label)
        accuracies.append(sum(hits) / 7)
        from_hits = sum(norm for norm, hit in zip(norms, hits, strict=True) if hit)
        fractions.append(from_hits / sum(norms))
        effective.append(sum(norms) ** 2 / sum(norm**2 for norm in norms) / 7)
    cosines = [
        float(sums[label] @ row) / _length(sums[label]) / _length(row)
        for label, row in enumerate(prototypes[:3])
    ]
    rows = [_length(row) for row in prototypes]
    assert 0 < sum(accuracies) < 2
    expected = {
        "batch_loss": statistics.fmean(losses),
        "accuracy": statistics.fmean(accuracies),
        "feature_length": statistics.fmean(lengths),
        "feature_length_std": statistics.stdev(lengths),
        "prototype_length": statistics.fmean(rows),
        "prototype_length_std": statistics.stdev(rows),
        "prototype_mean_cosine": statistics.fmean(cosines),
        "correct_gradient_fraction": statistics.fmean(fractions),
        "effective_sample_fraction": statistics.fmean(effective),
    }
    assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    # Every row of the table is measured, with its deviation, or that of an evaluation.
    names = {name for _, *keys in dynamics.QUANTITIES for name in keys if name}
    assert names - set(measured) == {"validation_accuracy", "inter_effective_rank"}


def test_gradients_have_the_precision_of_training(dynamics: ModuleType) -> None:
    objective = _objective("ce").float()
    batches = [(images.float(), labels) for images, labels in _batches()]
    full, rounded = (
        dynamics.measure(objective, batches, _config(precision=precision), lr=_LR)
        for precision in ("fp32", "bf16")
    )
    assert rounded["feature_length"] != full["feature_length"]
    assert rounded["backbone_gradient_norm"] != full["backbone_gradient_norm"]
    assert rounded["backbone_gradient_norm"] == pytest.approx(
        full["backbone_gradient_norm"], rel=0.05
    )


@pytest.mark.parametrize(
    ("norms", "fraction"), [([2, 2, 2, 2], 1), ([4, 0, 0, 0], 0.25), ([3, 1], 0.8)]
)
def test_effective_fraction_of_samples_by_hand(
    dynamics: ModuleType, norms: list[float], fraction: float
) -> None:
    value = dynamics.effective_sample_fraction(torch.tensor(norms, dtype=torch.float64))
    assert float(value) == pytest.approx(fraction)


def test_fraction_of_the_gradient_from_correct_samples_by_hand(dynamics: ModuleType) -> None:
    correct = torch.tensor([True, False, True, False])
    value = dynamics.correct_gradient_fraction(torch.tensor([1.0, 4.0, 2.0, 1.0]), correct)
    assert float(value) == pytest.approx(3 / 8)


def test_measuring_leaves_gradients_buffers_and_random_numbers_alone(dynamics: ModuleType) -> None:
    objective, batches = _objective("normface"), _batches()
    first = next(objective.parameters())
    first.grad = torch.ones_like(first)
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    memory = [buffer.data_ptr() for buffer in objective.buffers()]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with dynamics.undisturbed(objective, torch.device("cpu")):
        torch.rand(5)
        dynamics.measure(objective, batches, _config(), lr=_LR)
        assert objective.get_buffer("encoder.1.num_batches_tracked") == 2
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], value) for name, value in objective.state_dict().items())
    assert memory == [buffer.data_ptr() for buffer in objective.buffers()]
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(p.grad is None for p in list(objective.parameters())[1:])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [({"mixing": object()}, "mixing must be None"), ({"precision": "fp16"}, "fp32 or bf16")],
)
def test_what_cannot_be_measured_is_refused(
    dynamics: ModuleType, settings: dict[str, Any], message: str
) -> None:
    config = _config()
    for name, value in settings.items():
        object.__setattr__(config, name, value)
    with pytest.raises(ValueError, match=message):
        dynamics.check(config)


def _run(folder: Path, *, stop_after: int | None = None) -> RunFolder:
    settings = ["schedule.epochs=3", "training.ema_decay=0.9", "evaluation.every=2"]
    recipe = read_recipe("digits-normface", [*few_digits(), *settings, "checkpoint.every=1"])
    events = runner.run_recipe(recipe, folder, load_dataset(recipe), start="resume")
    for number, _ in enumerate(events, 1):
        if number == stop_after:
            break
    return RunFolder(folder)


def _state(folder: RunFolder) -> dict[str, Any]:
    checkpoint = load_checkpoint(folder.checkpoints)
    assert checkpoint is not None
    state = checkpoint.state
    return {"weights": checkpoint.weights, "ema": state["ema"], "optimizer": state["optimizer"]}


def _without_speed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if name != "images_per_second"}
        for entry in records
    ]


def test_training_is_the_same_bit_for_bit_and_resumes(
    dynamics: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dynamics, "EVERY", 3)
    plain = _run(tmp_path / "plain")
    dynamics.record()
    recorded = _run(tmp_path / "recorded")
    torch.testing.assert_close(_state(recorded), _state(plain), rtol=0, atol=0)
    records = _without_speed(recorded.records())
    measured = [entry for entry in records if entry["kind"] == "dynamics"]
    others = [entry for entry in records if entry["kind"] != "dynamics"]
    assert others == _without_speed(plain.records())
    assert [entry["epoch"] for entry in measured] == [1, 3]
    assert len({entry["backbone_gradient_norm"] for entry in measured}) == 2
    assert all(math.isfinite(value) for entry in measured for value in list(entry.values())[1:])
    _run(tmp_path / "resumed", stop_after=2)
    resumed = _run(tmp_path / "resumed")
    assert _without_speed(resumed.records()) == records


def test_jobs_have_the_settings_of_the_sweeps(dynamics: ModuleType) -> None:
    recipes = {}
    for job in dynamics.jobs():
        recipe = read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
        recipes[recipe.loss.name] = recipe
        assert (recipe.schedule.epochs, recipe.training.batch_size) == (40, 512)
        assert job.prepare is dynamics.record
        assert max(dynamics.SHOWN_EPOCHS) == recipe.schedule.epochs
    assert all(epoch in {1, *range(0, 41, dynamics.EVERY)} for epoch in dynamics.SHOWN_EPOCHS)
    assert tuple(recipes) == dynamics.METHODS
    for loss, recipe in recipes.items():
        settings = dict(text.split("=", 1) for text in dynamics.chosen_settings(loss))
        assert recipe.optimizer.lr == float(settings["optimizer.lr"])
        assert recipe.training.ema_decay == json.loads(settings["training.ema_decay"])
    assert all(recipe.augmentation.mixing is None for recipe in recipes.values())


def _log_run(
    dynamics: ModuleType, runs: Path, method: str, *, epochs: int = 2, device: str = "NVIDIA"
) -> None:
    """Write a run that was evaluated after its second epoch and measured after two."""
    folder = runs / f"dynamics-{method}"
    metrics = {"accuracy": [(2, 0.5)], "inter_effective_rank": [(2, 8.5)]}
    logged_run(folder, metrics, f"schedule.epochs={epochs}", recipe=f"digits-{method}")
    machine = {"device": device, "versions": {"torch": "2"}, "commit": "abc"}
    (folder / "machine.json").write_text(json.dumps(machine))
    names = {name for _, *keys in dynamics.QUANTITIES for name in keys if name}
    values = dict.fromkeys(names - {"validation_accuracy", "inter_effective_rank"}, 0.25)
    for epoch in (1, 2):
        entry = {"kind": "dynamics", "step": 10 * epoch, "epoch": epoch, **values}
        RunFolder(folder).log(entry | {"accuracy": 0.1 * epoch})


def test_complete_runs_are_collected_and_shown(
    dynamics: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamics, "RESULTS", tmp_path / "dynamics.json")
    for method in ("ce", "ntce", "nonl"):
        _log_run(dynamics, tmp_path / "runs", method, epochs=3 if method == "nonl" else 2)
    dynamics.collect(tmp_path / "runs")
    results = json.loads((tmp_path / "dynamics.json").read_text())
    assert [(row["method"], row["epoch"]) for row in results["rows"]] == [
        ("ce", 1),
        ("ce", 2),
        ("ntce", 1),
        ("ntce", 2),
    ]
    assert results["rows"][1]["validation_accuracy"] == 0.5
    assert results["rows"][1]["inter_effective_rank"] == 8.5
    assert results["rows"][1]["train_loss"] == 1.0
    assert results["rows"][1]["accuracy"] == 0.2
    assert "validation_accuracy" not in results["rows"][0]
    assert [job.name for job in dynamics.missing_jobs()] == [
        "dynamics-normface",
        "dynamics-nonl",
        "dynamics-normface-nonl",
    ]
    lines = dynamics.table(results).splitlines()
    assert lines[0] == "| | loss | epoch 1 |"
    assert lines[2] == "| training accuracy on the batches | cross-entropy | 0.1 |"
    assert lines[3] == "|  | NTCE | 0.1 |"
    assert lines[4] == "| accuracy on the validation images | cross-entropy | – |"
    assert "| length of features | cross-entropy | 0.25 ± 0.25 |" in lines
    assert len(lines) == 2 + 2 * len(dynamics.QUANTITIES)
    # A later run adds to what is there.
    _log_run(dynamics, tmp_path / "more", "normface")
    dynamics.collect(tmp_path / "more")
    later = json.loads((tmp_path / "dynamics.json").read_text())
    assert list(dict.fromkeys(row["method"] for row in later["rows"])) == ["ce", "normface", "ntce"]


def test_runs_on_a_cpu_are_results_of_their_own(
    dynamics: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamics, "RESULTS", tmp_path / "dynamics.json")
    _log_run(dynamics, tmp_path / "runs", "ce", device="cpu")
    dynamics.collect(tmp_path / "runs")
    results = json.loads((tmp_path / "dynamics-cpu.json").read_text())
    assert [row["method"] for row in results["rows"]] == ["ce", "ce"]
    assert dynamics.source(results) == "cpu, torch 2, one seed; commit abc."
    assert not (tmp_path / "dynamics.json").exists()
    assert len(dynamics.missing_jobs()) == len(dynamics.METHODS)
    _log_run(dynamics, tmp_path / "runs", "ntce")
    for runs in ("no-runs", "runs"):  # None, or runs of two devices.
        with pytest.raises(SystemExit, match=r"must have complete runs .* all of one device"):
            dynamics.collect(tmp_path / runs)

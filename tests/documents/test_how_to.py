"""The how-to pages for Lightning, timm and Hugging Face: their code runs and does what they say."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from support.documents import blocks, read

CLASSES = 10
# The digits of the pages: a linear classifier has about 0.95.
BETTER_THAN_CHANCE = 0.8


@pytest.fixture
def page(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run the code of a page in a temporary folder, without network, and return its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(request.param, "python"):
        exec(compile(block, request.param, "exec"), namespace)
    return namespace


def _accuracy(predicted: torch.Tensor, page: dict[str, Any]) -> float:
    return float((predicted == page["digits"].test.labels).float().mean())


@pytest.mark.whole_program
@pytest.mark.filterwarnings(
    # Lightning 2.6 with torch 2.15.
    "ignore:.*isinstance.treespec, LeafSpec.* is deprecated",
    # Lightning's advice, on machines with more cores.
    "ignore:.*does not have many workers",
)
@pytest.mark.parametrize("page", ["docs/lightning.md"], indirect=True)
def test_lightning(page: dict[str, Any]) -> None:
    logged = page["logged"]
    assert set(page["model"].collapse.names) | {"accuracy"} <= set(logged)
    assert float(logged["accuracy"]) > BETTER_THAN_CHANCE
    assert 0 < float(logged["nc1_ratio"]) < 1
    assert page["mixup_loss"].requires_grad
    assert math.isfinite(page["mixup_loss"].item())
    assert _accuracy(page["predicted"], page) > BETTER_THAN_CHANCE
    linear = torch.nn.Linear(32, CLASSES)
    with pytest.raises(ValueError, match="CosineClassifier"):
        page["NONLLoss"]()(torch.randn(4, 32), linear, torch.arange(4))


@pytest.mark.whole_program
@pytest.mark.parametrize("page", ["docs/timm.md"], indirect=True)
def test_timm(page: dict[str, Any]) -> None:
    assert page["targets"].shape == (64, CLASSES)
    assert math.isfinite(page["loss"].item())
    assert 0 < float(page["metrics"]["nc1_ratio"]) < 1
    assert _accuracy(page["predicted"], page) > BETTER_THAN_CHANCE
    assert _accuracy(page["predicted_by_means"], page) > BETTER_THAN_CHANCE
    whole, images = page["whole"], torch.randn(2, 1, 8, 8)
    assert isinstance(whole.get_classifier(), CosineClassifier)
    assert whole(images).shape == (2, CLASSES)
    assert whole(images).abs().max() <= 1 / 0.2
    whole.reset_classifier(CLASSES)
    assert isinstance(whole.get_classifier(), torch.nn.Linear)


@pytest.mark.whole_program
def test_timm_loads_an_exported_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["model.backbone.name=test_resnet", "schedule.epochs=1", "evaluation.metrics=cheap"]
    recipe = read_recipe("digits-nonl", settings)
    list(run_recipe(recipe, "runs/digits", load_dataset(recipe)))
    run = load_run("runs/digits")
    run.export("backbone.safetensors", what="backbone")

    (line,) = [line for line in read("docs/timm.md").splitlines() if "checkpoint_path" in line]
    import timm

    loaded = eval(line.split("`")[1], {"timm": timm}).eval()
    images = torch.randn(2, 1, 8, 8)
    with torch.inference_mode():
        expected = run.objective.encoder.backbone.eval()(images)
        torch.testing.assert_close(loaded(images), expected)


@pytest.mark.whole_program
@pytest.mark.parametrize("page", ["docs/huggingface.md"], indirect=True)
def test_huggingface(page: dict[str, Any]) -> None:
    metrics = page["metrics"]
    assert metrics["eval_accuracy"] > BETTER_THAN_CHANCE
    assert {f"eval_{name}" for name in page["collapse"].names} <= set(metrics)
    assert math.isfinite(metrics["eval_loss"])
    assert _accuracy(page["predicted"], page) > BETTER_THAN_CHANCE
    images = torch.randn(2, 1, 8, 8)
    with torch.inference_mode():
        loaded, model = page["loaded"].eval(), page["model"].eval()
        assert torch.equal(loaded(images).logits, model(images).logits)

    assert _gradient_norm(page, accumulation=1) == pytest.approx(
        _gradient_norm(page, accumulation=4), rel=1e-4
    )


def _gradient_norm(page: dict[str, Any], *, accumulation: int) -> float:
    """Return the norm of the gradient that the page's Trainer computes from 64 samples."""
    unmixed = {"mixup": staticmethod(lambda images, labels: (images, labels))}
    trainer_class = type("TrainerWithoutMixup", (page["CosineTrainer"],), unmixed)
    arguments = page["TrainingArguments"](
        output_dir="out",
        max_steps=1,
        per_device_train_batch_size=64 // accumulation,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        learning_rate=0.0,
        max_grad_norm=1e9,
        save_strategy="no",
        use_cpu=True,
    )
    # Without dropout (the configuration has none) and with the same samples in the same order.
    trainer = trainer_class(page["model"], arguments, train_dataset=page["train_set"])
    trainer.train()
    return float(trainer.state.log_history[0]["grad_norm"])

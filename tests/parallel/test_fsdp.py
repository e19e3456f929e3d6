"""Training with divided weights (FSDP) gives the weights and checkpoints of one process."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.encoders import Encoder, create_backbone
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import Checkpoint, load_checkpoint
from protosphere.training import AdamW, TimmOptimizer
from protosphere.training.fsdp import find_blocks
from support.fsdp_training import Run, create_objective, shard_for_a_gpu, train_five_steps
from support.group_training import run_digits
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes("timm", "torch.distributed.fsdp") as running:
        yield running


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, Tensor], list[float], Checkpoint, dict[str, Any]]:
    return train_five_steps(None, Run())


def _assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3])
def test_weights_after_five_steps_are_those_of_one_process(
    processes: Processes, alone: Any, size: int
) -> None:
    """With clipping, momentum, a moving average, and evaluations in between."""
    expected, losses, checkpoint, found = alone
    results = processes.run(train_five_steps, [(Run(),)] * size)
    for rank, (weights, got, saved, own) in enumerate(results):
        assert got == pytest.approx(losses, rel=1e-10)
        if rank == 0:
            _assert_same(weights, expected)
            assert saved.step == checkpoint.step == 5
            assert list(saved.state) == list(checkpoint.state)
            assert saved.state["parameter_groups"] == checkpoint.state["parameter_groups"]
            for index, entries in checkpoint.state["optimizer"].items():
                _assert_same(saved.state["optimizer"][index], entries)
        else:
            assert not weights
        for name in ("features", "averaged features", "before projection"):
            torch.testing.assert_close(own[name], found[name], rtol=1e-10, atol=1e-10)
    names = [name for name, _ in create_objective(None).named_parameters()]
    for *_, own in results:
        assert own["divided"] == sorted(name for name in names if name.startswith("encoder."))
        assert own["blocks"] == 2
    shares = [own["elements"] / found["elements"] for *_, own in results]
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 1.2 / size
    assert found["divided"] == []


@pytest.mark.parametrize(
    "run",
    [
        Run(micro_batch_size=4),
        Run(optimizer=TimmOptimizer("lars"), lr=1e-2, frozen=True),
    ],
    ids=["micro-batches", "norms of weights, frozen stem"],
)
def test_settings(processes: Processes, run: Run) -> None:
    expected, losses, *_ = train_five_steps(None, run)
    (weights, got, *_), _ = processes.run(train_five_steps, [(run,)] * 2)
    assert got == pytest.approx(losses, rel=1e-10)
    _assert_same(weights, expected)


def test_checkpoints_continue_with_and_without_fsdp(processes: Processes) -> None:
    settings: dict[str, Any] = {"optimizer": AdamW(weight_decay=0.1), "lr": 1e-2}
    expected, *_ = train_five_steps(None, Run(**settings))
    divided = processes.run(train_five_steps, [(Run(**settings, stop_after=2),)] * 2)[0][2]
    whole = train_five_steps(None, Run(**settings, stop_after=2))[2]
    assert divided.step == whole.step == 2
    runs = [
        train_five_steps(None, Run(**settings, fsdp=False, resume=divided))[0],
        processes.run(train_five_steps, [(Run(**settings, fsdp=False, resume=divided),)] * 2)[0][0],
        processes.run(train_five_steps, [(Run(**settings, resume=divided),)] * 3)[0][0],
        processes.run(train_five_steps, [(Run(**settings, resume=whole),)] * 2)[0][0],
    ]
    for weights in runs:
        _assert_same(weights, expected)


def test_a_run_continues_on_one_process_without_fsdp(processes: Processes, tmp_path: Path) -> None:
    """With batch norm, whose statistics are those of a process with FSDP and without it."""
    settings = ["schedule.epochs=2", "training.batch_size=512", "training.ema_decay=0.9"]
    settings += ["evaluation.every=1", "checkpoint.every=1", "training.fsdp=true"]
    for name, fsdp in (("whole", "false"), ("divided", "true")):
        given = [*settings, f"training.fsdp={fsdp}"]
        processes.run(run_digits, [(str(tmp_path / name), given)] * 2)
    whole, divided = (
        load_checkpoint(RunFolder(tmp_path / name).checkpoints) for name in ("whole", "divided")
    )
    assert whole is not None
    assert divided is not None
    for name, value in whole.weights.items():
        torch.testing.assert_close(divided.weights[name], value, rtol=1e-4, atol=1e-5)
    records = [RunFolder(tmp_path / name).records() for name in ("whole", "divided")]
    losses = [[r["loss"] for r in rows if r["kind"] == "evaluation"] for rows in records]
    assert len(losses[0]) == 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    shutil.rmtree(max((tmp_path / "divided" / "checkpoints").iterdir()))
    recipe = read_recipe("digits-nonl", [*settings, "training.fsdp=false"])
    (event,) = run_recipe(recipe, tmp_path / "divided", load_dataset(recipe), start="resume")
    assert event.resumed_at == divided.step // 2
    assert event.progress.step == divided.step


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(processes: Processes, precision: str) -> None:
    """Parts of a batch round as the whole batch does, up to the order of sums."""
    run = Run(precision=precision)
    expected, losses, checkpoint, _ = train_five_steps(None, run)
    (weights, got, saved, _), _ = processes.run(train_five_steps, [(run,)] * 2)
    assert got == pytest.approx(losses, rel=1e-2)
    assert saved.state.get("loss_scale") == checkpoint.state.get("loss_scale")
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": TimmOptimizer("lamb")}, "must be one of sgd, adamw, .* with fsdp, got lamb"),
        ({"sharded": True}, "fsdp must be False if prototypes are sharded"),
        ({"again": True}, "weights must be whole before training with fsdp"),
    ],
    ids=["optimizer", "sharded prototypes", "divided weights"],
)
def test_what_does_not_go_with_fsdp_is_refused(
    processes: Processes, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        processes.run(train_five_steps, [(Run(**change),)] * 2)


def test_a_gpu_needs_nccl(processes: Processes) -> None:
    with pytest.raises(RuntimeError, match="fsdp on a GPU needs a process group of NCCL, got one"):
        processes.run(shard_for_a_gpu, [()] * 2)


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [
        ("resnet18", 8, "BasicBlock"),
        ("vit_tiny_patch16_224", 12, "Block"),
        ("convnext_atto", 12, "ConvNeXtBlock"),
    ],
)
def test_the_blocks_of_backbones(name: str, number: int, kind: str) -> None:
    backbone = create_backbone(name)
    blocks = find_blocks(Encoder(backbone))
    assert [type(block).__name__ for block in blocks] == [kind] * number
    assert find_blocks(torch.nn.Linear(2, 3)) == []

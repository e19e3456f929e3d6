"""Optimizers by name: SGD, AdamW and timm's, which resume bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import timm.optim
import torch
from torch import nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import nonl_loss
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import (
    SGD,
    AdamW,
    Objective,
    OptimizerConfig,
    ParameterGroups,
    Schedule,
    TimmOptimizer,
    TrainConfig,
    train,
)
from protosphere.training.optimizers import timm_optimizer_names
from protosphere.training.step import EagerStep
from support.training import small_loss

# One name of each class, without those that need other packages.
NAMES = list(
    {
        timm.optim.get_optimizer_info(name).opt_class: name
        for name in reversed(timm_optimizer_names())
        if not name.startswith(("bnb", "fused"))
    }.values()
)


@pytest.mark.bad_input
def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum must be at least 0 and less than 1, got 1\.0"):
        SGD(momentum=1.0)
    with pytest.raises(ValueError, match=r"betas must be at least 0 and less than 1, got 1\.5"):
        AdamW(betas=(0.9, 1.5))
    for create in (SGD, AdamW, lambda weight_decay: TimmOptimizer("lamb", weight_decay)):
        with pytest.raises(ValueError, match="weight_decay must be a number of at least 0, got -1"):
            create(weight_decay=-1)


def test_each_optimizer_creates_its_own() -> None:
    layer = nn.Linear(2, 2)
    sgd = SGD(momentum=0.5, weight_decay=0.1).create(layer.parameters(), 0.3)
    assert isinstance(sgd, torch.optim.SGD)
    assert {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.1}.items() <= sgd.defaults.items()
    adamw = AdamW(betas=(0.5, 0.6), weight_decay=0.1).create(layer.parameters(), 0.3)
    assert isinstance(adamw, torch.optim.AdamW)
    assert {"lr": 0.3, "betas": (0.5, 0.6), "weight_decay": 0.1}.items() <= adamw.defaults.items()
    assert not adamw.defaults["capturable"]
    config = TimmOptimizer("lamb", 0.2, {"betas": (0.5, 0.6)})
    lamb = config.create(layer.parameters(), 0.3)
    assert isinstance(lamb, timm.optim.Lamb)
    assert {"lr": 0.3, "betas": (0.5, 0.6), "weight_decay": 0.2}.items() <= lamb.defaults.items()
    assert config.name == "lamb"


def test_a_capturable_optimizer_is_fused() -> None:
    layer, lr = nn.Linear(2, 2), torch.tensor(0.3)
    sgd = SGD().create(layer.parameters(), lr, capturable=True)
    assert sgd.defaults["fused"]
    assert sgd.param_groups[0]["lr"] is lr
    adamw = AdamW().create(layer.parameters(), lr, capturable=True)
    assert adamw.defaults["fused"]
    assert adamw.defaults["capturable"]


def test_all_are_optimizer_configs() -> None:
    configs: list[OptimizerConfig] = [SGD(), AdamW(), TimmOptimizer("lion")]
    assert all(isinstance(config, OptimizerConfig) for config in configs)
    assert [config.is_capturable for config in configs] == [True, True, False]


@pytest.mark.parametrize("skipped", [[0], [0, 1], [2]])
@pytest.mark.parametrize("config", [SGD(), AdamW()], ids=str)
def test_a_fused_optimizer_skips_steps(config: SGD | AdamW, skipped: list[int]) -> None:
    """Also the first one, after which the momentum of torch's own SGD would be uninitialized."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1.0)
    lr = torch.tensor(0.1)
    fused = config.create(layers[0].parameters(), lr, capturable=True)
    for group in fused.param_groups:
        group["capturable"] = False  # torch captures on a GPU only.
    plain = config.create(layers[1].parameters(), 0.1)
    fused.found_inf = torch.zeros(())
    for step in range(4):
        gradient = torch.full((2, 2), step - 1.5)
        fused.found_inf.fill_(step in skipped)
        layers[0].weight.grad = gradient * (torch.inf if step in skipped else 1.0)
        layers[1].weight.grad = gradient
        fused.step()
        if step not in skipped:
            plain.step()
        torch.testing.assert_close(layers[0].weight, layers[1].weight)


def _objective(seed: int) -> Objective:
    """One matrix, one vector, and prototypes."""
    torch.manual_seed(seed)
    return Objective(nn.Linear(3, 4), CosineClassifier(4, 2), small_loss)


@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
@pytest.mark.parametrize("name", NAMES)
def test_timms_optimizers_resume_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    loader = FeatureLoader(torch.randn(12, 3), torch.arange(12) % 2)
    monkeypatch.setattr("timm.optim.kron.has_dynamo", False)  # It would compile for seconds.
    config = TrainConfig(
        Schedule(0.01, 3),
        4,
        optimizer=TimmOptimizer(name),
        parameter_groups=ParameterGroups(head_lr_scale=2.0, exclude_from_decay="norms_and_biases"),
        report_every=1,
    )
    whole, resumed = _objective(0), _objective(1)
    before = [parameter.detach().clone() for parameter in whole.parameters()]
    losses = []
    for progress in train(whole, loader, config):
        losses.append(progress.loss)
        if progress.step == 5:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
    continued = train(resumed, loader, config, resume=load_checkpoint(tmp_path))
    assert [progress.loss for progress in continued] == losses[5:]
    for parameter, other, start in zip(
        whole.parameters(), resumed.parameters(), before, strict=True
    ):
        assert torch.equal(parameter, other)
        assert not torch.equal(parameter, start)


@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
def test_a_random_state_of_an_optimizer_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kron has random numbers of its own, which matter once in a hundred steps."""
    monkeypatch.setattr("timm.optim.kron.has_dynamo", False)
    loader = FeatureLoader(torch.randn(4, 3), torch.arange(4) % 2)
    config = TrainConfig(Schedule(0.01, 1), 4, optimizer=TimmOptimizer("kron"))
    step, resumed = (EagerStep(_objective(0), loader, config) for _ in range(2))
    step((torch.arange(4),), step=0, lr=0.01)
    numbers = [each.optimizer.rng for each in (step, resumed)]
    assert numbers[0].getstate() != numbers[1].getstate()
    resumed.load_state_dict(step.state_dict())
    assert numbers[0].getstate() == numbers[1].getstate()


def test_a_timm_optimizer_follows_timm() -> None:
    """The weights after three steps are those of a loop with timm's optimizer."""
    torch.manual_seed(0)
    features, labels = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    objective, other = _objective(0), _objective(0)
    config = TrainConfig(
        Schedule(0.1, 3, "constant"), 4, optimizer=TimmOptimizer("lion", 0.1, {"betas": (0.8, 0.9)})
    )

    class OrderedLoader(FeatureLoader):
        def batches(self, *args: Any, **options: Any) -> Any:
            yield (torch.arange(4),)

    list(train(objective, OrderedLoader(features, labels), config))
    optimizer = timm.optim.Lion(other.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = other.encoder(features)
        nonl_loss(outputs, other.head.prototypes, labels, temperature=0.2).backward()
        optimizer.step()
    for parameter, expected in zip(objective.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lammb", {}, "optimizer must be one of timm's, got 'lammb'; did you mean 'lamb'"),
        ("adahessian", {}, "optimizer must be one of timm's, got 'adahessian'"),
        ("lookahead_sgd", {}, "optimizer must be one of timm's, got 'lookahead_sgd'"),
        ("lamb", {"lr": 3}, r"the optimizer lamb cannot be created with the options \{'lr': 3\}"),
        (
            "lamb",
            {"beta": 3},
            r"the optimizer lamb cannot be created with the options \{'beta': 3\}",
        ),
        ("lion", {"betas": (2, 3)}, "the optimizer lion cannot be created with the options .*beta"),
    ],
)
def test_unknown_optimizers_and_options_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        TimmOptimizer(name, options=options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("lion", {"momentum": 0.5}),
        ("adam", {"momentum": 0.5}),
        ("lion", {"layer_decay": 0.5}),
        ("lion", {"filter_bias_and_bn": False}),
        ("lion", {"eps": 0.5}),
        ("adopt", {"betas": (0.5, 0.6)}),
    ],
)
def test_options_that_timm_would_drop_are_refused(name: str, option: dict[str, Any]) -> None:
    (key,) = option
    with pytest.raises(ValueError, match=rf"options must not have {key}.* {name}; it has .+"):
        TimmOptimizer(name, options=option)


@pytest.mark.parametrize(
    ("name", "option"),
    [("lion", {"foreach": False}), ("nesterov", {"nesterov": False}), ("lars", {"eps": 0.5})],
)
def test_options_of_an_optimizer_reach_it(name: str, option: dict[str, Any]) -> None:
    created = TimmOptimizer(name, options=option).create([nn.Parameter(torch.zeros(2))], 0.1)
    assert created.defaults.items() >= option.items()

"""NeuralCollapse in Lightning: sanity check, training, inference mode, two processes."""

import lightning
import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.losses import nonl_loss
from protosphere.metrics import NeuralCollapse, measure
from support.clouds import STREAMING, cloud, defined

pytestmark = [
    pytest.mark.whole_program,
    pytest.mark.filterwarnings("ignore"),
]  # Lightning's own warnings
DIM, CLASSES = 6, 3


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(DIM, DIM)
        self.head = CosineClassifier(DIM, CLASSES)
        self.collapse = NeuralCollapse(DIM, CLASSES, self.head.prototypes)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nonl_loss(self.encoder(batch[0]), self.head.prototypes, batch[1], temperature=0.5)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.collapse.update(self.encoder(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.collapse.compute())
        self.collapse.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def _loader() -> torch.utils.data.DataLoader:
    features, labels, *_ = map(torch.from_numpy, cloud([20, 12, 8], DIM))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), 8)


def _trainer(tmp_path, **options) -> lightning.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(
        accelerator="cpu", max_epochs=2, default_root_dir=tmp_path, **(quiet | options)
    )


def _expected(module: Module) -> dict[str, float]:
    features, labels, *_ = map(torch.from_numpy, cloud([20, 12, 8], DIM))
    return measure(
        module.encoder(features).detach(),
        labels,
        module.head.prototypes.detach(),
        metrics=STREAMING,
    )


def test_training_and_validation(tmp_path) -> None:
    module = Module()
    trainer = _trainer(tmp_path)
    trainer.fit(module, _loader(), _loader())
    expected = _expected(module)
    assert set(trainer.callback_metrics) == set(module.collapse.names)
    assert set(defined(trainer.callback_metrics)) == set(expected)
    for name, value in expected.items():
        assert float(trainer.callback_metrics[name]) == pytest.approx(value, rel=1e-5, abs=1e-7), (
            name
        )


def test_true_half_precision_keeps_the_metric_in_float64(tmp_path) -> None:
    module = Module()
    trainer = _trainer(tmp_path, precision="bf16-true")
    trainer.fit(module, _loader(), _loader())
    assert module.encoder.weight.dtype == torch.bfloat16
    assert module.collapse.means.dtype == torch.float64
    assert 0 < float(trainer.callback_metrics["nc1_ratio"]) < float("inf")


def test_two_processes(tmp_path) -> None:
    module = Module()
    trainer = _trainer(tmp_path, devices=2, strategy="ddp_fork")
    trainer.validate(module, _loader(), verbose=False)
    for name, value in _expected(module).items():
        assert float(trainer.callback_metrics[name]) == pytest.approx(value, rel=1e-5, abs=1e-7), (
            name
        )

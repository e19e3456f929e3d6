"""The sections of a recipe other than its data, augmentation and loss."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from protosphere.recipes.section import Section

Epoch = Annotated[int, Field(ge=1)]


class Backbone(Section):
    """The network that turns images into features."""

    name: str = Field("resnet18", description="A timm model, or 'small' for 8 by 8 pixel images.")
    stem: Literal["imagenet", "cifar"] = Field(
        "imagenet", description="cifar: 3x3 convolution of stride 1, no pooling (ResNets only)."
    )
    zero_init_residual: bool | None = Field(
        None,
        description="Zero-initialize the last norm of each residual block; false is torchvision's "
        "initialization, null the backbone's own.",
    )
    pretrained: bool | Annotated[str, Field(min_length=1)] = Field(
        False,
        description="true: timm's weights, downloaded if they are not in its cache; or the path "
        "of a .safetensors or state dict file.",
    )


class MLPProjection(Section):
    """Linear, ReLU, linear."""

    name: Literal["mlp"] = "mlp"
    hidden_dim: int | None = Field(None, ge=1, description="null: the feature dimension.")
    out_dim: int = Field(128, ge=1)


class LinearProjection(Section):
    """One linear layer."""

    name: Literal["linear"] = "linear"
    out_dim: int = Field(128, ge=1)


class FrozenStages(Section):
    """Freeze the stem and the first stages of the backbone."""

    stages: int = Field(ge=0, description="Number of stages, beside the stem.")


class Model(Section):
    """The encoder; its head follows from the loss."""

    backbone: Backbone = Backbone()
    neck: Literal["none", "batchnorm", "linear"] = "none"
    projection: Annotated[MLPProjection | LinearProjection, Field(discriminator="name")] | None = (
        Field(None, description="Projection head between the encoder and the loss.")
    )
    freeze: Literal["none", "backbone"] | FrozenStages = Field(
        "none",
        description="Parts that are not trained: the whole backbone, or its stem and first stages "
        "with {stages: N}.",
    )


class LRScale(Section):
    """Factors of the learning rate of the parts of the model."""

    backbone: float = Field(1.0, gt=0)
    neck: float = Field(1.0, gt=0, description="Factor for the neck and the projection.")
    head: float = Field(1.0, gt=0)


class _Optimizer(Section):
    name: str
    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    lr_scale: LRScale = LRScale()
    layer_decay: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Factor of the learning rate from each layer of the backbone to the one "
        "before it.",
    )
    exclude_from_decay: Literal["none", "norms_and_biases"] = Field(
        "none", description="Parameters without weight decay."
    )

    @model_validator(mode="after")
    def _check_exclusion(self) -> "_Optimizer":
        if self.exclude_from_decay != "none" and not self.weight_decay:
            raise ValueError("exclude_from_decay has no effect without weight_decay")
        return self


class SGDSettings(_Optimizer):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(0.2, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)


class AdamWSettings(_Optimizer):
    """AdamW."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    weight_decay: float = Field(1e-2, ge=0)


class TimmOptimizerSettings(_Optimizer):
    """An optimizer of timm."""

    name: Literal[
        "adabelief", "adafactor", "adam", "adan", "adopt", "lamb", "laprop", "lars", "lion",
        "madgrad", "mars", "muon", "nadamw", "nesterov", "novograd", "radam", "rmsprop",
    ]  # fmt: skip
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-2, ge=0)
    options: dict[str, float | bool | tuple[float, ...]] = Field(
        {}, description="Other arguments of the optimizer, such as betas or momentum."
    )


Optimizer = Annotated[
    SGDSettings | AdamWSettings | TimmOptimizerSettings, Field(discriminator="name")
]


def _check_milestones(milestones: tuple[int, ...], epochs: int) -> None:
    if list(milestones) != sorted(set(milestones)) or milestones[-1] >= epochs:
        raise ValueError(
            f"milestones must be increasing and less than epochs ({epochs}), got {list(milestones)}"
        )


class _Schedule(Section):
    name: str
    epochs: int = Field(100, ge=1)
    warmup_epochs: int = Field(0, ge=0)
    warmup_lr: float | None = Field(
        None,
        gt=0,
        description="Learning rate at the start of the warmup; null means 0.01, "
        "or a tenth of a learning rate of at most 0.01.",
    )

    @model_validator(mode="after")
    def _check_warmup(self) -> "_Schedule":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs must be less than epochs ({self.epochs}), got "
                f"{self.warmup_epochs}; a short run needs no warmup: "
                f"schedule={{name: cosine, epochs: {self.epochs}}}"
            )
        if self.warmup_lr is not None and not self.warmup_epochs:
            raise ValueError(f"warmup_lr must be null without warmup_epochs, got {self.warmup_lr}")
        return self


class CosineSchedule(_Schedule):
    """Cosine decay per epoch."""

    name: Literal["cosine"] = "cosine"
    min_lr_ratio: float = Field(
        1e-3,
        ge=0,
        le=1,
        description="Learning rate at the end, relative to the start; it has no effect on a run of "
        "one epoch.",
    )


class MultiStepSchedule(_Schedule):
    """Decay by a factor at given epochs."""

    name: Literal["multistep"] = "multistep"
    milestones: tuple[Epoch, ...] = Field(min_length=1)
    gamma: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _check_order(self) -> "MultiStepSchedule":
        _check_milestones(self.milestones, self.epochs)
        return self


class ConstantSchedule(_Schedule):
    """A constant learning rate."""

    name: Literal["constant"] = "constant"


Schedule = Annotated[
    CosineSchedule | MultiStepSchedule | ConstantSchedule, Field(discriminator="name")
]


class Training(Section):
    """Batches and arithmetic."""

    batch_size: int = Field(512, ge=2)
    micro_batch_size: int | None = Field(
        None,
        ge=2,
        description="Images that the encoder computes at a time, to save memory. The gradient is "
        "that of the whole batch.",
    )
    grad_clip: float | None = Field(None, gt=0, description="Maximum norm of the gradient.")
    ema_decay: float | None = Field(
        None, gt=0, lt=1, description="Decay of an exponential moving average of the weights."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Precision of the model; fp16 scales the loss, for GPUs on which bf16 is slow.",
    )
    compile: Literal["auto"] | bool = Field("auto", description="auto: compile on a GPU.")
    fsdp: bool = Field(
        False,
        description="Divide the weights of the encoder, their gradients and the state of the "
        "optimizer over the processes, for encoders that do not fit on one GPU; it has no effect "
        "on one process.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_accumulation(cls, values: Any) -> Any:
        """Accept what every recipe of version 0.2.0 says: that gradients are not accumulated."""
        if isinstance(values, Mapping) and values.get("grad_accum_steps") == 1:
            return {key: value for key, value in values.items() if key != "grad_accum_steps"}
        return values

    @model_validator(mode="after")
    def _check_micro_batches(self) -> "Training":
        if self.micro_batch_size is not None and self.micro_batch_size >= self.batch_size:
            raise ValueError(
                f"micro_batch_size must be less than batch_size ({self.batch_size}), got "
                f"{self.micro_batch_size}"
            )
        return self


class EvaluationSettings(Section):
    """When and what to evaluate during training."""

    every: int = Field(10, ge=1, description="Epochs between evaluations.")
    metrics: Literal["all", "cheap"] = Field(
        "all", description="cheap: only metrics of class sums; features are not kept in memory."
    )


class CheckpointSettings(Section):
    """When to save and how many checkpoints to keep."""

    every: int = Field(10, ge=1, description="Epochs between checkpoints.")
    keep: int = Field(2, ge=1, description="Number of checkpoints to keep, beside the best one.")
    monitor: Literal["accuracy", "balanced_accuracy", "loss"] | None = Field(
        None,
        description="Metric of the validation images by which the best checkpoint is chosen; it is "
        "kept beside the last ones.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Stop after this many evaluations in a row without a new best.",
    )

    @model_validator(mode="after")
    def _check_patience(self) -> "CheckpointSettings":
        if self.patience is not None and self.monitor is None:
            raise ValueError("patience has no effect without monitor")
        return self


class ProbeSettings(Section):
    """How ``protosphere evaluate --probe`` trains linear classifiers on frozen features."""

    epochs: int = Field(100, ge=1)
    batch_size: int = Field(512, ge=1)
    lr: float = Field(5.0, gt=0)
    milestones: tuple[Epoch, ...] = Field((60, 75, 90), min_length=1)
    gamma: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _check_order(self) -> "ProbeSettings":
        _check_milestones(self.milestones, self.epochs)
        return self

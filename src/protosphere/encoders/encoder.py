"""The encoder: a backbone, an optional neck and an optional projection head as named children."""

from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

_EncoderT = TypeVar("_EncoderT", bound="Encoder")


class Encoder(nn.Module):
    """A backbone followed by an optional neck and an optional projection head.

    The parts are children with names, so the keys of the state dict read ``backbone.conv1.weight``,
    ``neck.weight`` and ``projection.0.weight``.

    Args:
        backbone: Network that maps images to features of shape ``(images, dim)``.
        neck: Module between the backbone and the head, or None.
        projection: Projection head of contrastive training, or None.
        feature_dim: Width of the backbone's features. None reads the attribute
            ``head_hidden_size`` (timm) or ``num_features`` of the backbone.

    Attributes:
        feature_dim: Width of the features after the neck and before the projection.
        out_dim: Width of the output of :meth:`forward`.
        frozen_modules: Parts of the backbone that stay in evaluation mode; see
            :func:`~protosphere.encoders.freezing.freeze_backbone`.

    Raises:
        ValueError: ``feature_dim`` is None and the backbone does not state its width.

    >>> from protosphere.encoders import create_backbone, create_projection
    >>> backbone = create_backbone("small", in_channels=1)
    >>> encoder = Encoder(backbone, projection=create_projection("mlp", 64, out_dim=16))
    >>> encoder.feature_dim, encoder.out_dim, encoder.without_projection().out_dim
    (64, 16, 64)
    """

    def __init__(
        self,
        backbone: nn.Module,
        neck: nn.Module | None = None,
        projection: nn.Module | None = None,
        *,
        feature_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.projection = projection
        self.frozen_modules: tuple[nn.Module, ...] = ()
        dim = _stated_dim(backbone) if feature_dim is None else feature_dim
        self.feature_dim = dim if neck is None else _output_dim(neck, dim)
        self.out_dim = (
            self.feature_dim if projection is None else _output_dim(projection, self.feature_dim)
        )

    def train(self: _EncoderT, mode: bool = True) -> _EncoderT:
        """Set the mode of all parts; frozen ones stay in evaluation mode.

        Args:
            mode: Whether to set training mode instead of evaluation mode.

        Returns:
            This encoder.
        """
        super().train(mode)
        for module in self.frozen_modules:
            module.eval()
        return self

    def forward(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images out_dim"]:
        """Return the output of the last part: the projection, the neck or the backbone."""
        features = self.forward_features(images)
        return features if self.projection is None else self.projection(features)

    def forward_features(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images feature_dim"]:
        """Return the features after the neck and before the projection."""
        features: Tensor = self.backbone(images)
        return features if self.neck is None else self.neck(features)

    def without_projection(self) -> "Encoder":
        """Return an encoder that shares backbone and neck and has no projection.

        Returns:
            This encoder itself if it has no projection.
        """
        if self.projection is None:
            return self
        # The neck may change the width, so the width before it cannot be taken from feature_dim.
        encoder = Encoder(self.backbone, feature_dim=self.feature_dim)
        encoder.neck = self.neck
        encoder.training = self.training
        encoder.frozen_modules = self.frozen_modules
        return encoder


def _stated_dim(backbone: nn.Module) -> int:
    """Return the width of the features that the backbone states as an attribute."""
    # Some timm models have a layer between their last stage (num_features) and their classifier.
    for name in ("head_hidden_size", "num_features"):
        dim = getattr(backbone, name, None)
        if isinstance(dim, int):
            return dim
    kind = type(backbone).__name__
    raise ValueError(f"feature_dim must be given for a backbone without num_features, got {kind}")


@torch.no_grad()
def _output_dim(module: nn.Module, dim: int) -> int:
    """Return the width of a module's output for features of width ``dim``, from a trial run."""
    tensor = next(module.parameters(), None)
    zeros = torch.zeros(1, dim) if tensor is None else tensor.new_zeros(1, dim)
    modes = {child: child.training for child in module.modules()}
    try:
        return int(module.eval()(zeros).shape[-1])
    finally:
        for child, training in modes.items():
            child.training = training

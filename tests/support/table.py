"""Every loss of the library, one row each: the contract tests run on all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from protosphere import losses
from support import oracles


@dataclass(frozen=True)
class Row:
    """A loss, its module, its oracle, and which of the options it has.

    ``on`` says what the loss takes beside the labels: features and prototypes, features alone, or logits.
    """

    name: str
    function: Callable[..., Tensor]
    module: type[nn.Module]
    oracle: Callable[..., list[Tensor | None]]
    on: str = "prototypes"
    options: dict[str, Any] = field(default_factory=dict)
    has_temperature: bool = True
    has_form: bool = True
    on_sphere: bool = True

    def __str__(self) -> str:
        return self.name

    def settings(
        self, *, temperature: Any = None, form: str | None = None, **others: Any
    ) -> dict[str, Any]:
        """The options of this loss, with a temperature and a form where it has them."""
        settings = {**self.options, **others}
        if temperature is not None and self.has_temperature:
            settings["temperature"] = temperature
        if form is not None and self.has_form:
            settings["form"] = form
        return settings

    def call(
        self,
        function: Callable[..., Any],
        features: Tensor,
        prototypes: Tensor,
        labels: Any,
        **others: Any,
    ) -> Any:
        """Call with the tensors that the loss takes."""
        if self.on == "features":
            return function(features, labels, **others)
        if self.on == "logits":
            return function(features @ prototypes.mT, labels, **others)
        return function(features, prototypes, labels, **others)

    def expected(self, features, prototypes, labels, *, weights=None, reduction="mean", **others):
        """The oracle's answer."""
        numbers = labels.tolist()
        given = {**{k: v for k, v in self.options.items() if k != "min_temperature"}, **others}
        if self.on == "logits":
            given["temperature"] = 1.0
            values = self.oracle(features @ prototypes.mT, numbers, **given)
        else:
            values = self.call(self.oracle, features, prototypes, numbers, **given)
        return oracles.reduce(values, numbers, weights, reduction)


def _from_logits(oracle):
    """The oracle of a loss on cosines, fed with logits in place of them."""

    def on_logits(logits, labels, temperature, ignore_index=-100, **options):
        patched, oracles._scaled_cosines = (
            oracles._scaled_cosines,
            lambda rows, _, __: oracles.rows(rows),
        )
        try:
            return oracle(
                logits,
                torch.empty(logits.shape[1], 1),
                labels,
                ignore_index=ignore_index,
                **options,
            )
        finally:
            oracles._scaled_cosines = patched

    return on_logits


_L = losses
TABLE = [
    Row(
        "cross-entropy",
        _L.cross_entropy_loss,
        _L.CrossEntropyLoss,
        oracles.cross_entropy,
        on_sphere=False,
    ),
    Row("NormFace", _L.normface_loss, _L.NormFaceLoss, oracles.normface),
    Row(
        "NormFace, cosine margin",
        _L.normface_loss,
        _L.NormFaceLoss,
        oracles.normface,
        options={"margin": 0.2},
    ),
    Row(
        "NormFace, angle margin",
        _L.normface_loss,
        _L.NormFaceLoss,
        oracles.normface,
        options={"margin": 0.3, "margin_kind": "angle"},
    ),
    Row("NTCE", _L.ntce_loss, _L.NTCELoss, oracles.ntce),
    Row("NONL", _L.nonl_loss, _L.NONLLoss, oracles.nonl),
    Row("NONL, row", _L.nonl_loss, _L.NONLLoss, oracles.nonl, options={"negatives": "prototypes"}),
    Row("NONL, both", _L.nonl_loss, _L.NONLLoss, oracles.nonl, options={"negatives": "both"}),
    Row("SCL", _L.scl_loss, _L.SCLLoss, oracles.scl, on="features"),
    Row("prototype loss", _L.prototype_loss, _L.PrototypeLoss, oracles.prototype, on="features"),
    Row(
        "dot regression",
        _L.dot_regression_loss,
        _L.DotRegressionLoss,
        oracles.dot_regression,
        has_temperature=False,
        has_form=False,
    ),
    *(
        Row(
            f"{name}, from logits",
            function,
            module,
            _from_logits(oracle),
            on="logits",
            options=options,
            has_temperature=False,
            has_form=False,
            on_sphere=False,
        )
        for name, function, module, oracle, options in (
            ("NormFace", _L.normface_from_logits, _L.NormFaceFromLogits, oracles.normface, {}),
            ("NTCE", _L.ntce_from_logits, _L.NTCEFromLogits, oracles.ntce, {}),
            ("NONL", _L.nonl_from_logits, _L.NONLFromLogits, oracles.nonl, {}),
            (
                "NONL, row",
                _L.nonl_from_logits,
                _L.NONLFromLogits,
                oracles.nonl,
                {"negatives": "prototypes"},
            ),
            (
                "NONL, both",
                _L.nonl_from_logits,
                _L.NONLFromLogits,
                oracles.nonl,
                {"negatives": "both"},
            ),
        )
    ),
]

WITH_FORM = [row for row in TABLE if row.has_form]
ON_SPHERE = [row for row in TABLE if row.on_sphere]

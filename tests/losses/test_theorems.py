"""The paper's mathematics: values at the simplex, lemmas, bounds, descent to collapse."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.geometry import cosines, normalize, simplex_etf
from protosphere.losses import nonl_loss, normface_loss, ntce_loss, prototype_loss, scl_loss
from support.losses import TABLE
from support.scalar_loops import Row

F64 = torch.float64
NORMALIZED = [row for row in TABLE if row.reaches_simplex]


def _collapsed(
    classes: int, each: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    frame = simplex_etf(classes, dim, seed=3)
    labels = torch.arange(classes * each) % classes
    return frame[labels], frame, labels


@pytest.mark.parametrize(
    ("classes", "each", "temperature"), [(10, 8, 0.2), (100, 3, 0.1), (2, 5, 1.0), (7, 1, 0.07)]
)
@pytest.mark.long
def test_values_at_the_simplex(classes: int, each: int, temperature: float, form: str) -> None:
    features, prototypes, labels = _collapsed(classes, each, classes + 3)
    q = math.exp(-(1 + 1 / (classes - 1)) / temperature)
    normface = math.log1p((classes - 1) * q)
    settings: dict[str, Any] = {"temperature": temperature, "form": form}
    value = normface_loss(features, prototypes, labels, **settings).item()
    assert value == pytest.approx(normface, rel=1e-10)
    value = ntce_loss(features, prototypes, labels, **settings).item()
    assert value == pytest.approx(normface + math.log(each), rel=1e-10, abs=1e-12)
    value = nonl_loss(features, prototypes, labels, **settings).item()
    assert value == pytest.approx(math.log(each * (classes - 1) * q), rel=1e-10)


def test_values_printed_in_the_documentation() -> None:
    batch = _collapsed(10, 8, 9)
    assert normface_loss(*batch, temperature=0.2).item() == pytest.approx(0.0342, abs=5e-5)
    assert ntce_loss(*batch, temperature=0.2).item() == pytest.approx(2.1136, abs=5e-5)
    assert nonl_loss(*batch, temperature=0.2).item() == pytest.approx(-1.2789, abs=5e-5)


Configuration = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, float]


@st.composite
def balanced(draw: st.DrawFn) -> Configuration:
    """Unit vectors with balanced labels, from scattered to almost collapsed."""
    classes, each, dim = draw(st.integers(2, 6)), draw(st.integers(2, 5)), draw(st.integers(2, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    labels = torch.arange(classes * each) % classes
    centers = torch.randn(classes, dim, dtype=F64, generator=generator)
    noise = torch.randn(classes * each, dim, dtype=F64, generator=generator)
    features = normalize(centers[labels] + draw(st.sampled_from([0.01, 0.3, 3.0])) * noise)
    prototypes = normalize(torch.randn(classes, dim, dtype=F64, generator=generator))
    return features, prototypes, labels, each, draw(st.sampled_from([0.1, 0.3, 1.0]))


def _class_means(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([features[labels == c].mean(0) for c in range(int(labels.max()) + 1)])


@given(balanced())
def test_ntce_and_nonl_are_at_least_their_class_mean_forms(configuration: Configuration) -> None:
    features, prototypes, labels, each, temperature = configuration
    similarities = prototypes @ _class_means(features, labels).mT / temperature
    attraction = similarities.diagonal().mean()
    own = torch.eye(len(prototypes), dtype=torch.bool)
    ntce_class = (similarities + math.log(each)).logsumexp(1).mean() - attraction
    nonl_class = (similarities + math.log(each)).masked_fill(own, -torch.inf).logsumexp(
        1
    ).mean() - attraction
    assert ntce_loss(features, prototypes, labels, temperature=temperature) >= ntce_class - 1e-10
    assert nonl_loss(features, prototypes, labels, temperature=temperature) >= nonl_class - 1e-10


@given(balanced())
def test_nonl_is_at_least_its_floor(configuration: Configuration) -> None:
    features, prototypes, labels, each, temperature = configuration
    negatives = len(labels) - each
    values = nonl_loss(features, prototypes, labels, temperature=temperature, reduction="none")
    assert (values >= math.log(negatives) - 2 / temperature - 1e-10).all()


@given(balanced())
def test_scl_and_the_prototype_loss_are_at_least_their_common_bound(
    configuration: Configuration,
) -> None:
    features, _, labels, each, temperature = configuration
    similarities = features @ _class_means(features, labels).mT / temperature
    argument = (each * similarities.exp()).sum(1) - math.exp(1 / temperature)
    defined = argument > 0
    bound = torch.where(defined, argument, 1).log() - similarities.gather(
        1, labels[:, None]
    ).squeeze(1)
    for loss in (scl_loss, prototype_loss):
        values = loss(features, labels, temperature=temperature, reduction="none")
        assert (values >= bound - 1e-9)[defined].all()


@given(
    classes=st.integers(2, 6), each=st.integers(2, 5), temperature=st.sampled_from([0.1, 0.3, 1.0])
)
def test_scl_and_the_prototype_loss_agree_at_any_collapse(
    classes: int, each: int, temperature: float
) -> None:
    labels = torch.arange(classes * each) % classes
    features = normalize(torch.randn(classes, 4, dtype=F64))[labels]
    got = scl_loss(features, labels, temperature=temperature)
    torch.testing.assert_close(
        prototype_loss(features, labels, temperature=temperature), got, rtol=1e-9, atol=1e-9
    )


def _descend(
    row: Row, *, classes: int, each: int, dim: int, non_negative: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Optimize features that are parameters themselves; each step ends with a normalization."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(classes * each) % classes
    free = torch.randn(len(labels), dim, dtype=F64, generator=generator)
    if non_negative:
        # Positive at the start: a coordinate on which ReLU has no gradient would never collapse.
        centers = torch.rand(classes, dim, dtype=F64, generator=generator)
        free = centers[labels] + 0.1 * free.abs()
    prototypes = torch.randn(classes, dim, dtype=F64, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([free.requires_grad_(), prototypes], lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    for _ in range(600):
        features = free.relu() if non_negative else free
        loss = row.call(features, prototypes, labels, **row.settings(temperature=0.2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            free.copy_(normalize(free))
            prototypes.copy_(normalize(prototypes))
    features = normalize(free.relu() if non_negative else free).detach()
    return features, prototypes.detach()


@pytest.mark.long
@pytest.mark.parametrize("row", NORMALIZED, ids=str)
def test_free_features_descend_to_the_simplex(row: Row) -> None:
    classes, each = 4, 3
    features, prototypes = _descend(row, classes=classes, each=each, dim=6, non_negative=False)
    labels = torch.arange(classes * each) % classes
    same = labels[:, None] == labels[None, :]
    gram = features @ features.mT
    assert (gram[same] - 1).abs().max() < 1e-3
    assert (gram[~same] + 1 / (classes - 1)).abs().max() < 5e-3
    if row.inputs == "prototypes":
        assert (cosines(features, prototypes).gather(1, labels[:, None]) - 1).abs().max() < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("row", NORMALIZED, ids=str)
def test_non_negative_features_descend_to_an_orthogonal_frame(row: Row) -> None:
    classes, each = 3, 3
    features, _ = _descend(row, classes=classes, each=each, dim=8, non_negative=True)
    labels = torch.arange(classes * each) % classes
    same = labels[:, None] == labels[None, :]
    gram = features @ features.mT
    assert (gram[same] - 1).abs().max() < 1e-3
    assert gram[~same].abs().max() < 1e-3

"""A queue of recent features: the losses against loops over batch and queue, and its entries."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from protosphere import losses
from protosphere.classifiers import CosineClassifier
from protosphere.losses import FeatureQueue, NONLLoss, NTCELoss, QueuedFeatures, SCLLoss
from support.scalar_loops import dot, log_sum_exp, rows, unit

F64 = torch.float64
CLASSES, DIM = 4, 5
LOSSES = {"ntce": losses.ntce_loss, "nonl": losses.nonl_loss, "both": losses.nonl_loss}
every_loss = pytest.mark.parametrize("name", [*LOSSES, "scl"])


def _batch(
    samples: int = 9, entries: int = 7, classes: int = CLASSES, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, QueuedFeatures]:
    generator = torch.Generator().manual_seed(seed)
    features, prototypes, queued = (
        torch.randn(count, DIM, dtype=F64, generator=generator)
        for count in (samples, classes, entries)
    )
    labels = torch.randint(classes, (samples,), generator=generator)
    of_queue = torch.randint(classes, (entries,), generator=generator)
    kept = torch.rand(entries, generator=generator) < 0.8
    return features, prototypes, labels, QueuedFeatures(queued, of_queue, kept)


def _call(
    name: str, features: Tensor, prototypes: Tensor, labels: Tensor, **settings: Any
) -> Tensor:
    if name == "scl":
        return losses.scl_loss(features, labels, **settings)
    if name == "both":
        settings["negatives"] = "both"
    return LOSSES[name](features, prototypes, labels, **settings)


def _by_loops(
    name: str,
    features: Tensor,
    prototypes: Tensor,
    labels: Tensor,
    queue: QueuedFeatures,
    temperature: float,
) -> Tensor:
    """The mean over anchors that have a negative (NONL) or a positive (SCL)."""
    u, w, q = ([unit(v) for v in rows(x)] for x in (features, prototypes, queue.features))
    kept = [i for i, y in enumerate(labels.tolist()) if y != -100]
    keys: list[tuple[int, list[Tensor], int]] = [(i, u[i], int(labels[i])) for i in kept]
    keys += [(-1, q[j], int(queue.labels[j])) for j in range(len(q)) if queue.kept[j]]
    values = []
    for i in kept:
        own = int(labels[i])
        if name == "scl":
            logits = {k: dot(u[i], v) / temperature for k, (j, v, _) in enumerate(keys) if j != i}
            positives = [logit for k, logit in logits.items() if keys[k][2] == own]
            if positives:
                mean = torch.stack(positives).sum() / len(positives)
                values.append(log_sum_exp(list(logits.values())) - mean)
            continue
        # NTCE has the samples of the class in its sum, but not the entries of the class.
        column = [
            dot(v, w[own]) / temperature
            for j, v, y in keys
            if y != own or (name == "ntce" and j >= 0)
        ]
        if name == "both":
            column += [dot(u[i], w[c]) / temperature for c in range(len(w)) if c != own]
        if column:
            values.append(log_sum_exp(column) - dot(u[i], w[own]) / temperature)
    return torch.stack(values).sum() / len(values)


@every_loss
@pytest.mark.parametrize("classes", [CLASSES, 30], ids=["few classes", "more classes than samples"])
@pytest.mark.parametrize("ignored", [False, True])
def test_values_and_gradients_equal_loops_over_batch_and_queue(
    name: str, classes: int, ignored: bool, form: str
) -> None:
    features, prototypes, labels, queue = _batch(classes=classes)
    queue.labels[:2] = labels[:2]  # Of 30 classes, batch and queue may have none in common.
    labels[3] = labels[4]
    if ignored:
        labels[[1, 6]] = -100
    inputs = features.requires_grad_(), prototypes.requires_grad_()
    value = _call(name, *inputs, labels, queue=queue, temperature=0.3, form=form)
    expected = _by_loops(name, *inputs, labels, queue, 0.3)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(expected, inputs, allow_unused=True)
    for got, want in zip(
        torch.autograd.grad(value, inputs, allow_unused=True), wanted, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@every_loss
def test_an_empty_queue_changes_no_bit(name: str, form: str) -> None:
    features, prototypes, labels, queue = _batch()
    nothing = queue._replace(kept=torch.zeros(7, dtype=torch.bool))
    results = []
    empty = QueuedFeatures(queue.features[:0], queue.labels[:0], queue.kept[:0])
    for given_queue in (None, nothing, empty):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        value = _call(name, x, w, labels, queue=given_queue, form=form)
        results.append((value, *torch.autograd.grad(value, (x, w), allow_unused=True)))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            # The sums of SCL over further keys, all zero, may be grouped in another way.
            tolerance = 1e-14 if name == "scl" else 0
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_queue_gives_negatives_to_a_batch_of_one_class() -> None:
    features, prototypes, _, queue = _batch()
    labels = torch.full((9,), 2)
    assert losses.nonl_loss(features, prototypes, labels) == 0
    queue = queue._replace(labels=torch.full((7,), 1), kept=torch.ones(7, dtype=torch.bool))
    assert losses.nonl_loss(features, prototypes, labels, queue=queue) != 0
    own = queue._replace(labels=labels[:7])
    assert losses.nonl_loss(features, prototypes, labels, queue=own) == 0


def test_queue_gives_a_positive_to_the_only_sample_of_its_class() -> None:
    features, _, _, queue = _batch(samples=3)
    labels = torch.tensor([0, 1, 2])
    assert losses.scl_loss(features, labels) == 0
    queue = queue._replace(labels=torch.full((7,), 1), kept=torch.ones(7, dtype=torch.bool))
    values = losses.scl_loss(features, labels, queue=queue, reduction="none")
    assert (values != 0).tolist() == [False, True, False]


class _Reference:
    """The queue as a list of (feature, label, step), oldest first."""

    def __init__(self, size: int, max_age: int | None, start: int) -> None:
        self.size, self.max_age, self.start = size, max_age, start
        self.entries: list[tuple[list[float], int, int]] = []
        self.step = 0

    def add(self, features: Tensor, labels: list[int]) -> None:
        for feature, label in zip(features.tolist(), labels, strict=True):
            length = sum(x * x for x in feature) ** 0.5
            self.entries.append(([x / length for x in feature], label, self.step))
        self.entries = self.entries[-self.size :]
        self.step += 1

    def read(self) -> list[tuple[list[float], int]]:
        if self.step < self.start:
            return []
        return [
            (feature, label)
            for feature, label, step in self.entries
            if label >= 0 and (self.max_age is None or self.step - step <= self.max_age)
        ]


@given(
    size=st.integers(1, 12),
    max_age=st.none() | st.integers(1, 4),
    start=st.integers(0, 3),
    batches=st.lists(st.lists(st.sampled_from([-100, 0, 1, 2]), max_size=15), max_size=6),
)
def test_entries_are_those_of_a_list(
    size: int, max_age: int | None, start: int, batches: list[list[int]]
) -> None:
    """With wrap-around, batches larger than the queue, empty ones, age limit and warm-up."""
    queue = FeatureQueue(size, 2, max_age=max_age, start=start).double()
    reference = _Reference(size, max_age, start)
    generator = torch.Generator().manual_seed(0)
    for labels in [*batches, []]:
        features, got_labels, kept = queue.read()[:3]
        got = sorted(zip(features[kept].tolist(), got_labels[kept].tolist(), strict=True))
        for (feature, label), (want, of_want) in zip(got, sorted(reference.read()), strict=True):
            assert label == of_want
            assert feature == pytest.approx(want, abs=1e-12)
        batch = torch.randn(len(labels), 2, dtype=F64, generator=generator)
        queue.add(batch, torch.tensor(labels, dtype=torch.int64))
        reference.add(batch, labels)


def test_features_that_are_not_finite_are_no_keys() -> None:
    queue = FeatureQueue(4, 2)
    queue.add(torch.tensor([[1.0, torch.inf], [torch.nan, 1.0], [0.0, 2.0]]), torch.arange(3))
    features, labels, kept = queue.read()[:3]
    assert labels[kept].tolist() == [2]
    assert torch.isfinite(features).all()


def test_reading_copies_and_adding_keeps_no_graph() -> None:
    queue = FeatureQueue(3, 2)
    before = queue.read().features
    queue.add(torch.ones(2, 2, requires_grad=True), torch.arange(2))
    assert before.count_nonzero() == 0
    assert not queue.read().features.requires_grad


MODULES = {"ntce": NTCELoss, "nonl": NONLLoss, "scl": SCLLoss}


def _value(module: nn.Module, features: Tensor, head: CosineClassifier, labels: Tensor) -> Tensor:
    if isinstance(module, SCLLoss):
        return module(features, labels)
    return module(features, head, labels)


@pytest.mark.parametrize("name", MODULES)
def test_modules_read_the_queue_before_they_add_to_it(name: str) -> None:
    head = CosineClassifier(DIM, CLASSES, temperature=0.1).double()
    module = MODULES[name](queue=FeatureQueue(20, DIM, start=1).double())
    queue = FeatureQueue(20, DIM, start=1).double()
    for seed in range(4):
        features, _, labels, _ = _batch(seed=seed)
        labels[seed] = -100
        expected = _call(name, features, head.prototypes, labels, queue=queue.read())
        assert _value(module, features, head, labels) == expected
        queue.add(features, labels)
    assert module.queue.read().kept.sum() == 20 - 2  # Of two of the last 20 samples none.


@pytest.mark.parametrize("name", MODULES)
def test_evaluation_neither_reads_nor_changes_the_queue(name: str) -> None:
    features, _, labels, _ = _batch()
    head = CosineClassifier(DIM, CLASSES).double()
    module = MODULES[name](queue=FeatureQueue(20, DIM).double())
    _value(module, features, head, labels)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    assert set(state) == {f"queue.{key}" for key, _ in module.queue.named_buffers()}
    value = _value(module.eval(), features, head, labels)
    assert value == _value(MODULES[name](), features, head, labels)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[key])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", MODULES)
def test_the_features_stay_in_float32_when_the_module_is_converted(
    name: str, dtype: torch.dtype
) -> None:
    head = CosineClassifier(DIM, CLASSES, temperature=0.1).to(dtype)
    module, other = (MODULES[name](queue=FeatureQueue(20, DIM)) for _ in range(2))
    names = list(module.state_dict())
    for step in range(2):
        module.to(dtype)
        features, _, labels, _ = _batch(seed=step)
        features = features.to(dtype).requires_grad_()
        value = _value(module, features, head, labels)
        assert torch.equal(value, _value(other, features, head, labels))
        value.backward()
    assert module.queue.features.dtype == torch.float32
    assert torch.equal(module.queue.features, other.queue.features)
    assert (module.queue.features[:18].norm(dim=1) - 1).abs().max() < 1e-6
    assert list(module.state_dict()) == names
    assert module.half().bfloat16().float().queue.features.dtype == torch.float32


def test_a_conversion_with_a_device_moves_the_queue() -> None:
    queue = nn.ModuleDict({"queue": FeatureQueue(20, DIM)}).to("meta", torch.bfloat16)["queue"]
    assert {buffer.device.type for buffer in queue.buffers()} == {"meta"}
    assert queue.features.dtype == torch.float32


def test_a_queue_in_float64_is_not_narrowed_below_float32() -> None:
    queue = FeatureQueue(20, DIM).double()
    assert queue.features.dtype == F64
    assert queue.bfloat16().features.dtype == F64
    assert queue.float().features.dtype == torch.float32


def test_a_queue_that_is_not_persistent_is_no_part_of_the_state_dict() -> None:
    assert not NTCELoss(queue=FeatureQueue(4, 2, persistent=False)).state_dict()


@pytest.mark.parametrize("name", ["ntce", "nonl", "scl"])
def test_gradients_near_collapse_keep_their_digits(name: str) -> None:
    """In float32, against float64 on the same inputs."""
    generator = torch.Generator().manual_seed(3)
    frame, labels = torch.eye(CLASSES, 32, dtype=F64), torch.arange(24) % CLASSES
    of_queue = torch.arange(40) % CLASSES
    features, queued = (
        (frame[y] + 0.001 * torch.randn(len(y), 32, dtype=F64, generator=generator)).float()
        for y in (labels, of_queue)
    )
    prototypes = (frame + 0.001 * torch.randn(CLASSES, 32, dtype=F64, generator=generator)).float()
    results: list[tuple[Tensor, ...]] = []
    for dtype in (torch.float32, F64):
        x, w = (t.to(dtype).requires_grad_() for t in (features, prototypes))
        queue = QueuedFeatures(queued.to(dtype), of_queue, torch.ones(40, dtype=torch.bool))
        value = _call(name, x, w, labels, queue=queue, temperature=0.1)
        results.append(torch.autograd.grad(value, (x, w), allow_unused=True))
    for got, want in zip(*results, strict=True):
        if want is not None:
            assert (got.double() - want).norm() <= 0.001 * want.norm()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureQueue(0, 2), "size must be an integer of at least 1, got 0"),
        (lambda: FeatureQueue(4, 2, max_age=0), "max_age must be an integer of at least 1, got 0"),
        (lambda: FeatureQueue(4, 2, start=-1), "start must be an integer of at least 0, got -1"),
        (lambda: FeatureQueue(4, 2).add(torch.ones(2, 3), torch.arange(2)), "as wide as the queue"),
        (
            lambda: NTCELoss(queue=QueuedFeatures),  # type: ignore[arg-type]
            "queue must be None or a FeatureQueue, got type",
        ),
        (
            lambda: NTCELoss(queue=FeatureQueue(4, 2), label_smoothing=0.1),
            "queue must be None with soft labels or label smoothing",
        ),
        (
            lambda: NONLLoss(queue=FeatureQueue(4, 2), negatives="prototypes"),
            'queue must be None with negatives="prototypes"',
        ),
    ],
)
def test_bad_options_get_a_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.bad_input
@every_loss
def test_queues_that_do_not_fit_get_a_sentence(name: str) -> None:
    features, prototypes, labels, queue = _batch()
    for wrong, message in (
        (FeatureQueue(4, DIM), "queue must be None or QueuedFeatures, .* got FeatureQueue"),
        (queue._replace(features=queue.features[:, 1:]), "as wide as the features, 5; got 4"),
        (queue._replace(kept=queue.kept[1:]), "one entry for each of the 7 features"),
        (queue._replace(labels=queue.labels - 9), "queue.labels must be"),
        (queue._replace(features=queue.features.clone().requires_grad_()), "must be constants"),
    ):
        with pytest.raises(ValueError, match=message):
            _call(name, features, prototypes, labels, queue=wrong)
    if name != "scl":
        soft = torch.nn.functional.one_hot(labels, CLASSES).double()
        with pytest.raises(ValueError, match="queue must be None with soft labels"):
            _call(name, features, prototypes, soft, queue=queue)
        with pytest.raises(ValueError, match="from 0 to 3"):
            _call(
                name, features, prototypes, labels, queue=queue._replace(labels=labels[:7] * 0 + 4)
            )

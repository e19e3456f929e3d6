"""The exported classifier in onnxruntime gives the same numbers as torch."""

from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime
import pytest
import torch

from protosphere.classifiers import PrototypeClassifier
from protosphere.classifiers.onnx import export_onnx


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_onnx_gives_the_numbers_of_torch(
    rule: Literal["cosine", "nearest"], tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(300, 17)).astype(np.float32)
    classifier = PrototypeClassifier(rule=rule, temperature=0.2).fit(
        features, generator.integers(0, 5, 300)
    )
    export_onnx(classifier, tmp_path / "prototypes.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "prototypes.onnx"))
    module = classifier.to_module()
    for batch_size in (1, 7, 256):
        inputs = generator.normal(size=(batch_size, 17)).astype(np.float32) * 10
        inputs[0] = 0
        scores, probabilities = session.run(["scores", "probabilities"], {"features": inputs})
        with torch.no_grad():
            expected = module(torch.from_numpy(inputs))
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(probabilities, expected.softmax(1), rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            probabilities, classifier.predict_proba(inputs), rtol=0, atol=1e-5
        )


@pytest.mark.bad_input
def test_a_class_without_samples_is_not_exported(tmp_path: Path) -> None:
    classifier = PrototypeClassifier().partial_fit(np.eye(2), [0, 1], classes=[0, 1, 2])
    with pytest.raises(
        ValueError, match="every class must have samples to be exported, but 2 has none"
    ):
        export_onnx(classifier, tmp_path / "prototypes.onnx")

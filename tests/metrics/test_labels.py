"""Labels that are class names are refused with the way to convert them."""

from typing import Any

import numpy as np
import pytest

from protosphere.metrics import measure

FEATURES = np.random.default_rng(0).standard_normal((6, 3))
NAMES = ["cat", "dog", "cat", "ant", "dog", "ant"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "labels", [NAMES, np.array(NAMES), np.array(NAMES, "S"), np.array(NAMES, object)]
)
def test_class_names_are_refused_with_a_hint(labels) -> None:
    with pytest.raises(ValueError, match=r"labels must be integer class indices, got .*; ") as info:
        measure(FEATURES, labels)
    statement = str(info.value).split("; ")[1].removesuffix(" converts class names")
    namespace: dict[str, Any] = {"np": np, "labels": np.asarray(labels)}
    exec(statement, namespace)
    assert measure(FEATURES, namespace["labels"]) == measure(FEATURES, [1, 2, 1, 0, 2, 0])
    assert namespace["names"].astype(str).tolist() == ["ant", "cat", "dog"]

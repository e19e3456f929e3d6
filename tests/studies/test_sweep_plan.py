"""Plans of sweeps: pruning that cannot happen is refused."""

from typing import Any

import pytest

from protosphere.recipes.loading import read_recipe
from protosphere.studies.sweep_plan import create_plan
from protosphere.studies.sweep_settings import SweepError

RATES = "optimizer.lr=0.1,0.2"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "over"),
    [
        (["schedule.epochs=10", "evaluation.every=10"], [RATES]),
        (["schedule.epochs=10", "evaluation.every=20"], [RATES]),
        (["evaluation.every=10"], [RATES, "schedule.epochs=5,10"]),
        (
            ["evaluation.every=10"],
            ["schedule={name: cosine, epochs: 4},{name: constant, epochs: 8}"],
        ),
    ],
)
def test_pruning_without_an_evaluation_before_the_end_is_refused(
    overrides: list[str], over: list[str]
) -> None:
    recipe = read_recipe("digits-ce", overrides)
    with pytest.raises(SweepError) as caught:
        create_plan(recipe, over, prune=True)
    assert str(caught.value).startswith(
        "--prune needs an evaluation before the last epoch: evaluation.every must be less than "
        "schedule.epochs, got "
    )
    create_plan(recipe, over)


@pytest.mark.parametrize(
    ("overrides", "over", "options"),
    [
        (["schedule.epochs=10", "evaluation.every=9"], [RATES], {}),
        (["evaluation.every=10"], [RATES, "schedule.epochs=5,11"], {}),
        (["evaluation.every=10"], [RATES, "schedule.epochs=5..11"], {"trials": 9}),
        (
            ["evaluation.every=10"],
            ["schedule={name: cosine, epochs: 4},{name: constant, epochs: 12}"],
            {},
        ),
    ],
)
def test_pruning_that_can_happen_in_some_trial_is_accepted(
    overrides: list[str], over: list[str], options: dict[str, Any]
) -> None:
    assert create_plan(read_recipe("digits-ce", overrides), over, prune=True, **options).prune

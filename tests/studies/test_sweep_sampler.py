"""How settings of trials are chosen: distinct combinations of listed values, also after an end."""

import fcntl
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from protosphere.studies.sweep_sampler import SweepSampler, encode_value
from protosphere.studies.sweep_settings import parse_setting
from protosphere.studies.sweep_storage import SweepStudy
from support.sweeps import sweep, train_nothing

SETTINGS = [parse_setting("a=1,2,3"), parse_setting("b=x,y"), parse_setting("c=true,false")]
CHOICES = {setting.key: [encode_value(value) for value in setting.values] for setting in SETTINGS}


def _study(kind: str, seed: int) -> optuna.Study:
    return optuna.create_study(sampler=SweepSampler(kind, seed, SETTINGS), direction="maximize")


def _choose(trial: optuna.Trial) -> tuple[str, ...]:
    return tuple(trial.suggest_categorical(key, values) for key, values in CHOICES.items())


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_listed_values_are_combined_once_each(kind: str) -> None:
    orders = set()
    for seed in range(5):
        study, chosen = _study(kind, seed), []
        for _ in range(12):
            trial = study.ask()
            chosen.append(_choose(trial))
            # One value is far better: TPE would choose it again and again.
            study.tell(trial, float(chosen[-1][0] == "1"))
        assert len(set(chosen)) == 12
        orders.add(tuple(chosen))
        # Extended beyond the combinations by another machine: still a choice.
        assert _choose(study.ask()) in chosen
    assert len(orders) == 5


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_failed_running_and_half_chosen_trials_are_known(kind: str) -> None:
    study = _study(kind, 0)
    failed, running, waiting = study.ask(), study.ask(), study.ask()
    chosen = [_choose(failed), _choose(running)]
    study.tell(failed, state=TrialState.FAIL)
    first = waiting.suggest_categorical("a", CHOICES["a"])
    chosen += [_choose(study.ask()) for _ in range(9)]
    assert len(set(chosen)) == 11
    is_exhausted = sum(one[0] == first for one in chosen) == 4
    assert (_choose(waiting) in chosen) == is_exhausted
    assert waiting.params["a"] == first


def test_a_part_of_the_values_is_trained_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    over = "optimizer.lr=0.01,0.05,0.1,0.2,0.4"
    for seed in range(3):
        out = tmp_path / f"sweep-{seed}"
        record = sweep(out, over, trials=4, seed=seed, storage=f"journal:{out}.log")
        record = sweep(out, over, trials=5, seed=seed, storage=f"journal:{out}.log")
        assert {trial.value for trial in record.trials} == {0.01, 0.05, 0.1, 0.2, 0.4}


def test_processes_that_share_a_folder_choose_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that chose at the same moment would not know of each other."""
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    original = SweepStudy.choose

    def choose(self: SweepStudy, trial: optuna.Trial) -> dict[str, Any]:
        # What another process would lock is locked.
        with (tmp_path / "sweep/.sweep").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return original(self, trial)

    monkeypatch.setattr(SweepStudy, "choose", choose)
    assert len(sweep(tmp_path / "sweep", "optimizer.lr=0.1,0.2").trials) == 2

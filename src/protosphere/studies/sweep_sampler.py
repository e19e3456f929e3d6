"""How the settings of a trial are chosen: all combinations, at random, or by Optuna's TPE."""

import json
import random
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from protosphere.data.sampling import derive_seed
from protosphere.runs.sweeps import SweepSetting
from protosphere.studies.sweep_settings import count_combinations, grid_values

# Trials at random before TPE models them, and before the median of the others is a measure.
STARTUP_TRIALS = 5
# Draws for settings that no other trial has; TPE may choose the same ones almost always.
_MAX_DRAWS = 32


class SweepSampler(BaseSampler):
    """Choose settings from the seed, the number of the trial and the trials finished before.

    Every setting has a generator of its own, seeded by the seed of the sweep, the number of the
    trial and the key. A sweep that was killed therefore chooses as an undisturbed one does. If all
    settings are grids, no combination is chosen twice.

    Args:
        kind: ``"grid"`` for all combinations in order, ``"random"``, or ``"tpe"`` for the
            tree-structured Parzen estimator.
        seed: Seed of the sweep.
        settings: What is varied, in the order in which a trial chooses.
    """

    def __init__(self, kind: str, seed: int, settings: Sequence[SweepSetting]) -> None:
        self.kind, self.seed, self.settings = kind, seed, settings

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return nothing: settings are sampled one by one."""
        return {}

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return nothing: settings are sampled one by one."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Choose the value of one setting."""
        if self.kind == "grid":
            return encode_value(grid_values(self.settings, trial.number)[param_name])
        seed = derive_seed(f"sweep {param_name}", self.seed, trial.number) % 2**32
        sampler: BaseSampler = (
            TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
            if self.kind == "tpe"
            else RandomSampler(seed=seed)
        )
        new = self._new_values(study, trial, param_name)
        for _ in range(_MAX_DRAWS):
            value = sampler.sample_independent(study, trial, param_name, param_distribution)
            if not new or value in new:
                return value
        return random.Random(seed).choice(new)

    def _new_values(self, study: optuna.Study, trial: FrozenTrial, key: str) -> list[str]:
        """Return the values of a grid that can become a combination that no other trial has.

        There are none if a setting is a range, or if other trials have all combinations.
        """
        if count_combinations(self.settings) is None:
            return []
        keys = [setting.key for setting in self.settings]
        depth = keys.index(key)
        chosen = [trial.params[one] for one in keys[:depth]]
        taken = {
            tuple(other.params[one] for one in keys)
            for other in study.get_trials(deepcopy=False)
            if all(one in other.params for one in keys)
        }
        num_combinations = count_combinations(self.settings[depth + 1 :])
        values = map(encode_value, self.settings[depth].values)
        starts = [list(combination[: depth + 1]) for combination in taken]
        return [value for value in values if starts.count([*chosen, value]) != num_combinations]


def encode_value(value: Any) -> str:
    """Return a value of a grid as text, since Optuna has no mappings and takes true for 1.

    Args:
        value: Plain value.

    >>> encode_value({"name": "mixup"}), encode_value(True)
    ('{"name": "mixup"}', 'true')
    """
    return json.dumps(value, sort_keys=True)

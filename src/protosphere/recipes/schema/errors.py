"""Validation errors of recipes as one sentence that names the key, the rule and the value."""

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protosphere.recipes.schema.keys import key_owners, section_members
from protosphere.recipes.section import Section


class RecipeError(ValueError):
    """A recipe is not valid; the message says where and why."""


# Keys that people type from habit, and where the setting is.
HABITS = {
    "lr": "optimizer.lr",
    "epochs": "schedule.epochs",
    "batch_size": "training.batch_size",
    "milestones": "schedule.milestones",
    "gamma": "schedule.gamma",
    "learning_rate": "optimizer.lr",
    "base_lr": "optimizer.lr",
    "rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "decay": "optimizer.weight_decay",
    "optim": "optimizer.name",
    "opt": "optimizer.name",
    "batch": "training.batch_size",
    "bs": "training.batch_size",
    "batchsize": "training.batch_size",
    "accumulate": "training.micro_batch_size",
    "accum_steps": "training.micro_batch_size",
    "grad_accum_steps": "training.micro_batch_size",
    "clip": "training.grad_clip",
    "clip_grad": "training.grad_clip",
    "max_norm": "training.grad_clip",
    "ema": "training.ema_decay",
    "model_ema_decay": "training.ema_decay",
    "average": "training.ema_decay",
    "amp": "training.precision",
    "dtype": "training.precision",
    "num_epochs": "schedule.epochs",
    "max_epochs": "schedule.epochs",
    "n_epochs": "schedule.epochs",
    "warmup": "schedule.warmup_epochs",
    "min_lr": "schedule.min_lr_ratio",
    "sched": "schedule.name",
    "scheduler": "schedule.name",
    "lr_schedule": "schedule.name",
    "tau": "loss.temperature",
    "temp": "loss.temperature",
    "t": "loss.temperature",
    "smoothing": "loss.label_smoothing",
    "criterion": "loss.name",
    "arch": "model.backbone.name",
    "architecture": "model.backbone.name",
    "encoder": "model",
    "dataset": "data.source",
    "num_workers": "data.workers",
    "validation_share": "data.validation_fraction",
    "val_fraction": "data.validation_fraction",
    "val_split": "data.validation_fraction",
    "img_size": "augmentation.size",
    "input_size": "augmentation.size",
    "resolution": "augmentation.size",
    "flip": "augmentation.hflip",
    "horizontal_flip": "augmentation.hflip",
    "jitter": "augmentation.color_jitter",
    "blur": "augmentation.gaussian_blur",
    "views": "augmentation.num_views",
    "evaluate_every": "evaluation.every",
    "eval_every": "evaluation.every",
    "eval_interval": "evaluation.every",
    "save_every": "checkpoint.every",
    "save_interval": "checkpoint.every",
    "early_stopping": "checkpoint.patience",
    "early_stopping_patience": "checkpoint.patience",
    "mixup": "augmentation.mixing",
    "cutmix": "augmentation.mixing",
    "mixup_alpha": "augmentation.mixing",
    "aa": "augmentation.auto_augment",
    "randaugment": "augmentation.auto_augment",
    "reprob": "augmentation.random_erasing",
    "erasing": "augmentation.random_erasing",
    "weights": "model.backbone.pretrained",
    "frozen": "model.freeze",
    "oversample": "data.sampler",
    "imbalance_ratio": "data.long_tail",
    "imb_factor": "data.long_tail",
    "noise": "data.label_noise",
    "noise_rate": "data.label_noise.fraction",
    "superclasses": "data.class_groups",
    "weight": "loss.class_weights",
    "name": "name",
    "kind": "name",
    "type": "name",
}


def sentence(error: ValidationError, content: dict[str, Any], model: type[BaseModel]) -> str:
    """Return the first problem of a validation error in words.

    Args:
        error: What pydantic raised.
        content: The values that were validated.
        model: The model that they were validated against.
    """
    problems = error.errors()
    problem = problems[0]
    if problem["type"] == "literal_error" and isinstance(problem["input"], list | tuple | dict):
        # A key that takes words or a list: what is wrong with the list says the next problem.
        problem = next((one for one in problems if one["type"] != "literal_error"), problem)
    path = _path(problem, content)
    name, kind = ".".join(path), problem["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(path, content, model)
    if kind in ("missing", "union_tag_not_found"):
        key = name if kind == "missing" else f"{name}.{_tag(problem)}"
        return f"a recipe must set {key}"
    if kind == "union_tag_invalid":
        context = problem["ctx"]
        tags = str(context["expected_tags"]).replace("'", "")
        return f"{name}.{_tag(problem)} must be one of {tags}, got {context['tag']!r}"
    if kind == "literal_error":
        choices = str(problem["ctx"]["expected"]).replace(" or ", ", ")
        others = [one for one in problems if _path(one, content) == path]
        if any(one["type"].startswith("bool") for one in others):
            choices += ", true, false"
        choices += "".join(_other_choice(one) for one in others)
        return f"{name} must be one of {choices}, got {problem['input']!r}"
    if kind in ("value_error", "assertion_error"):
        text = str(problem["ctx"]["error"])
        about_key = " " not in text.split(" must ", maxsplit=1)[0]
        return ".".join([*path, text]) if about_key else ": ".join(filter(None, [name, text]))
    return f"{name} {_rule(problem)}, got {_short(problem['input'])}"


def _other_choice(problem: ErrorDetails) -> str:
    """Return the form of a value, beside words, that a problem says the key can have."""
    if problem["type"] == "tuple_type":
        return ", a list of numbers"
    if problem["type"] == "model_type":
        name = problem["ctx"]["class_name"]
        sections = {section.__name__: section for section in Section.__subclasses__()}
        keys = ", ".join(f"{key}: ..." for key in sections[name].model_fields)
        return f", {{{keys}}}"
    return ""


def _tag(problem: ErrorDetails) -> str:
    return str(problem["ctx"]["discriminator"]).strip("'")


def _path(problem: ErrorDetails, content: Any) -> list[str]:
    """Return the keys that lead to a problem, without the names of union members."""
    path: list[str] = []
    node = content
    for index, part in enumerate(problem["loc"]):
        last = index == len(problem["loc"]) - 1
        if isinstance(node, dict) and part in node:
            node = node[part]
            path.append(str(part))
        elif isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
            node = node[part]
            path[-1] += f"[{part}]"
        elif last and problem["type"] == "missing":
            path.append(str(part))
    return path


_RULES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must not be empty",
    "dataclass_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}
_TYPES = {
    "int": "must be an integer",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be a string",
    "tuple": "must be a list",
    "none": "must be null",
}


def _rule(problem: ErrorDetails) -> str:
    kind = problem["type"]
    if kind in _RULES:
        numbers = {key: _number(value) for key, value in problem.get("ctx", {}).items()}
        return _RULES[kind].format(**numbers)
    for start, rule in _TYPES.items():
        if kind.startswith(start):
            return rule
    return f"is not valid ({kind.replace('_', ' ')})"


def _number(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_key(path: Sequence[str], content: dict[str, Any], model: type[BaseModel]) -> str:
    name, section, key = ".".join(path), ".".join(path[:-1]), path[-1]
    every, members = key_owners(model), section_members(model, section)
    chosen = _chosen_name(content, path[:-1])
    if name in every:  # Another member of the union has it.
        owners = ", ".join(dict.fromkeys(every[name]))
        return f"{name} does not apply to {section} {chosen}; it applies to {owners}"
    habit = _habit(section, key, every)
    if habit is not None:
        return f"a recipe has no {name}; use {habit}"
    present = members.get(chosen, set().union(*members.values()))
    keys = [one.rpartition(".")[2] for one in every if one.rpartition(".")[0] == section]
    keys = [one for one in keys if one in present]
    near = difflib.get_close_matches(key, keys, 1, cutoff=0.7)
    if near:
        return f"a recipe has no {name}; did you mean {near[0]}?"
    if keys:
        return f"a recipe has no {name}; the keys there are {', '.join(keys)}"
    return f"a recipe has no {name}; {section} has no keys"


def _habit(section: str, key: str, every: Collection[str]) -> str | None:
    """Return the key that was probably meant by one that people type from habit."""
    habit = HABITS.get(key.lower().replace("-", "_"))
    if habit == "name":
        choices = (f"{section}.name", f"{section}.source", f"{section}.backbone.name")
        return next((one for one in choices if one in every), None)
    if habit is not None:
        return habit
    elsewhere = [one for one in every if one.rpartition(".")[2] == key]
    return elsewhere[0] if len(elsewhere) == 1 else None


def _chosen_name(content: Any, path: Sequence[str]) -> str:
    for part in path:
        content = content[part]
    return str(content.get("source") or content.get("name"))

"""``--help`` of every command: types, defaults and choices; values that the parser refuses."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from protosphere.cli.app import app
from support.commands import invoke, run_command, usage_error

# Each option with choices: a command line without it, the option, and its choices.
CHOICES = [
    ("train digits-ce --out x", "--log", "tensorboard wandb"),
    ("train digits-ce --out x", "--device", "auto cpu cuda cuda:N mps"),
    ("sweep digits-ce --out x", "--sampler", "grid tpe random"),
    ("sweep digits-ce --out x", "--metric", "accuracy balanced_accuracy loss ece"),
    ("evaluate x", "--split", "validation test"),
    ("evaluate x", "--probe", "all head cosine class_means linear normalized cached_linear knn"),
    ("evaluate x", "--device", "auto cpu cuda cuda:N mps"),
    ("evaluate x", "--checkpoint", "best last"),
    ("export x --out y", "--what", "model backbone"),
    ("measure x", "--split", "train validation test"),
    ("measure x", "--space", "sphere raw"),
    ("measure x", "--classes", "all present"),
    ("predict x y", "--format", "csv json"),
    ("prototypes predict x y", "--format", "csv json"),
    ("prototypes build x --out y", "--rule", "cosine nearest"),
]


def _walk(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _walk(child, [*words, name])


COMMANDS = list(_walk(typer.main.get_command(app), []))


def _help(words: list[str]) -> str:
    return re.sub(r"[\s│]+", " ", run_command(*words, "--help", columns=200))


@pytest.mark.parametrize(
    ("words", "command"),
    COMMANDS,
    ids=lambda value: "-".join(value) or "protosphere" if isinstance(value, list) else "",
)
def test_help_shows_options_defaults_and_no_type_of_flags(words: list[str], command: Any) -> None:
    text = _help(words)
    assert "<bool>" not in text.lower()
    for line in (command.help or "").splitlines()[1:]:
        assert len(line) <= 78, "lines of a description are not wrapped again"
    for param in command.params:
        if param.param_type_name != "option":
            continue
        assert param.opts[-1] in text
        assert param.help, param.opts
        assert param.help[-1] in ".,", f"the help of {param.opts[0]} is a sentence"
        if param.default not in (None, False) and not callable(param.default):
            is_switch = bool(param.secondary_opts)  # Such as --prune/--no-prune.
            shown = param.opts[0].lstrip("-") if is_switch else param.default
            assert f"[default: {shown}]" in text


@pytest.mark.parametrize(("command", "option", "choices"), CHOICES)
def test_help_lists_choices(command: str, option: str, choices: str) -> None:
    words = ["prototypes", command.split()[1]] if "prototypes" in command else command.split()[:1]
    text = _help(words).split(f"{option} <")[1]
    for choice in choices.split():
        assert choice.replace("cuda:N", "cuda[:N]") in text


@pytest.mark.bad_input
@pytest.mark.parametrize(("command", "option", "choices"), CHOICES)
def test_the_parser_refuses_other_values_and_lists_choices(
    command: str, option: str, choices: str
) -> None:
    message = usage_error(*command.split(), option, "nonsense")
    assert f"'{option}'" in message
    assert "Value error" not in message
    assert all(choice in message for choice in choices.split())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--epochs", "schedule.epochs"),
        ("--batch-size", "training.batch_size"),
        ("--lr", "optimizer.lr"),
        ("--pretrained", "model.backbone.pretrained"),
        ("--seed", "seed"),
        ("--mixup", "augmentation.mixing"),
    ],
)
def test_an_option_that_is_a_key_of_recipes_is_named(option: str, key: str) -> None:
    message = usage_error("train", "digits-ce", "--out", "x", option, "3")
    assert option in message
    assert f"; a recipe's key is set with --set {key}=VALUE" in message
    assert "Possible options" not in message


@pytest.mark.bad_input
def test_an_unknown_option_is_not_taken_for_a_key() -> None:
    assert "--set" not in usage_error("train", "digits-ce", "--out", "x", "--resum")
    assert "--set" not in usage_error("evaluate", "x", "--epochs", "3")


@pytest.mark.bad_input
@pytest.mark.parametrize("device", ["meta", "cuda:x", "cpu ", ""])
def test_a_device_that_torch_knows_and_we_do_not_is_refused(device: str) -> None:
    assert "is not one of auto, cpu, cuda, cuda:N, mps" in usage_error(
        "measure", "x", "--device", device
    )


@pytest.mark.bad_input
def test_the_parser_makes_control_characters_visible() -> None:
    for arguments in (["train", "x", "--device", "\x1b[31m"], ["evaluate", "x", "--split", "\x1b"]):
        assert "\x1b" not in invoke(*arguments, columns=300).output


def test_shell_completion_can_be_installed() -> None:
    assert "--install-completion" in _help([])

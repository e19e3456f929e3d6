"""Shared fixtures, and the hook that checks annotated shapes if PROTOSPHERE_TYPED_CALLS is set."""

import os

import pytest

if os.environ.get("PROTOSPHERE_TYPED_CALLS"):
    from jaxtyping import install_import_hook

    install_import_hook("protosphere", "beartype.beartype")

import hypothesis
import torch

hypothesis.settings.register_profile("gate", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("gate")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["eager", "chunked", "chunked, tiles computed again"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the primitive, the chunked one with tiles of three rows."""
    from protosphere.kernels import chunked

    monkeypatch.setattr(chunked, "_SIDE_ON_CPU", 3)
    if "again" in request.param:
        monkeypatch.setattr(chunked, "_KEPT", 0)
    return str(request.param).split(",")[0]

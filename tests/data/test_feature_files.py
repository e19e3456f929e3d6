"""Files of features: what was written is read, nothing is unpickled, damage gives a message."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protosphere.data import (
    FeatureFile,
    FeatureFileError,
    feature_files,
    read_features,
    write_features,
)

CONTENT: dict[str, Any] = {
    "features": np.arange(12, dtype=np.float32).reshape(4, 3),
    "labels": np.array([0, 1, 1, 0]),
    "prototypes": np.eye(2, 3, dtype=np.float32),
    "bias": np.array([0.5, -0.5], dtype=np.float32),
}


def _write(path: Path, content: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        (np.savez_compressed if "compressed" in path.name else np.savez)(path, **content)
        return path
    tensors = {key: torch.from_numpy(value) for key, value in content.items()}
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize(
    "name", ["plain.npz", "compressed.npz", "file.safetensors", "file.pt", "file.pth"]
)
@pytest.mark.parametrize("max_bytes", [1 << 24, 0])
def test_all_formats_return_what_was_written(
    name: str, max_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_files, "_MAX_BYTES_IN_MEMORY", max_bytes)
    content = read_features(_write(tmp_path / name, CONTENT))
    for key, value in CONTENT.items():
        np.testing.assert_array_equal(np.asarray(getattr(content, key)), value)
    if name == "plain.npz" or (name == "compressed.npz" and not max_bytes):
        assert isinstance(content.features, np.memmap)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_memory_layouts_and_dtypes_of_npz(dtype: Any, tmp_path: Path) -> None:
    features = np.asfortranarray(np.random.default_rng(0).standard_normal((5, 3)).astype(dtype))
    path = _write(
        tmp_path / "file.npz", {"features": features, "labels": np.arange(5, dtype=np.uint8)}
    )
    np.testing.assert_array_equal(read_features(path).features, features)


def test_custom_keys_and_class_names(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.npz",
        {"x": CONTENT["features"], "y": CONTENT["labels"], "class_names": np.array(["a", "b"])},
    )
    content = read_features(path, features="x", labels="y")
    assert content.class_names == ["a", "b"]
    assert content.prototypes is None
    assert content.bias is None


def test_bfloat16_of_safetensors(tmp_path: Path) -> None:
    save_file(
        {"features": torch.ones(4, 3, dtype=torch.bfloat16), "labels": torch.arange(4)},
        tmp_path / "b.safetensors",
    )
    assert read_features(tmp_path / "b.safetensors").features.dtype == torch.bfloat16


class Bomb:
    """Writes a file if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.write_text, (self.path, "boom")


@pytest.mark.bad_input
def test_nothing_is_unpickled(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    objects = np.array([Bomb(fuse)] * 4, dtype=object)
    np.savez(tmp_path / "objects.npz", features=objects, labels=np.arange(4))
    torch.save({"features": Bomb(fuse), "labels": torch.arange(4)}, tmp_path / "objects.pt")
    for suffix in (".pt", ".npz", ".safetensors"):
        (tmp_path / f"pickle{suffix}").write_bytes(pickle.dumps({"features": Bomb(fuse)}))
    for name in ("objects.npz", "objects.pt", "pickle.pt", "pickle.npz", "pickle.safetensors"):
        with pytest.raises(FeatureFileError) as caught:
            read_features(tmp_path / name)
        assert name in str(caught.value)
        if name == "objects.npz":
            assert "it has pickled objects, which are not read" in str(caught.value)
        assert not fuse.exists(), name


@pytest.mark.bad_input
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_unusable_files_are_refused(suffix: str, tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(FeatureFileError) as caught:
            read_features(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    path = tmp_path / f"file{suffix}"
    assert message(path) == f"{path} must be a file; it does not exist"
    path.write_bytes(b"")
    assert message(path) == f"file{suffix} must have features and labels; it is empty"
    path.write_bytes(b"nonsense" * 100)
    assert message(path).startswith(f"file{suffix} must be a")
    _write(path, {"x": CONTENT["features"], "labels": CONTENT["labels"]})
    assert message(
        path
    ) == f"file{suffix} must have features under the key 'features'; its keys are " + (
        "labels, x" if suffix == ".safetensors" else "x, labels"
    )
    _write(path, {"features": CONTENT["features"]})
    assert message(path).endswith("must have labels under the key 'labels'; its keys are features")
    _write(path, CONTENT)
    path.write_bytes(path.read_bytes()[:-300])
    assert message(path)


@pytest.mark.bad_input
def test_unusable_contents_are_refused(tmp_path: Path) -> None:
    for name, content, message in (
        (
            "list.pt",
            [torch.ones(3)],
            "must be a dictionary of tensors, got list",
        ),
        (
            "number.pt",
            {"features": 3, "labels": torch.arange(3)},
            "'features' in number.pt must be a dense tensor",
        ),
        (
            "list.pt",
            {"features": [[1.0]], "labels": torch.arange(1)},
            "'features' in list.pt must be a tensor, got a list",
        ),
        (
            "sparse.pt",
            {"features": torch.eye(3).to_sparse(), "labels": torch.arange(3)},
            "must be a dense tensor",
        ),
    ):
        torch.save(content, tmp_path / name)
        with pytest.raises(FeatureFileError, match=message):
            read_features(tmp_path / name)
    (tmp_path / "file.csv").write_text("1,2")
    with pytest.raises(
        FeatureFileError, match=r"file.csv must be an .npz, .safetensors or .pt file, got .csv"
    ):
        read_features(tmp_path / "file.csv")
    np.savez(tmp_path / "names.npz", **CONTENT, class_names=np.arange(2))
    with pytest.raises(FeatureFileError, match="must be a list of strings"):
        read_features(tmp_path / "names.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FeatureFileError, match="must be a regular file; it is a folder"):
        read_features(tmp_path / "folder.npz")
    with pytest.raises(FeatureFileError, match="must be a readable file: file name too long"):
        read_features(tmp_path / ("x" * 300 + ".npz"))
    for key in ("prototypes", "bias"):
        np.savez(tmp_path / "named.npz", features=CONTENT["features"], labels=CONTENT["labels"])
        with pytest.raises(
            FeatureFileError,
            match=f"must have {key} under the key 'w'; its keys are features, labels",
        ):
            read_features(tmp_path / "named.npz", **{key: "w"})
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("features.npy", "hello")
    with pytest.raises(FeatureFileError, match=r"features.npy in text.npz must be a NumPy array"):
        read_features(tmp_path / "text.npz")
    short = tmp_path / "short.npy"
    np.save(short, CONTENT["features"])
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("features.npy", short.read_bytes()[:-4])
    with pytest.raises(FeatureFileError, match="must have 48 bytes of data; it is damaged"):
        read_features(tmp_path / "short.npz")


@pytest.mark.bad_input
def test_damaged_files_give_a_message(tmp_path: Path) -> None:
    """Files with overwritten bytes can be read, or the error is one line."""
    rng = np.random.default_rng(0)
    messages: list[str] = []
    for name in ("plain.npz", "compressed.npz", "file.safetensors", "file.pt"):
        whole = _write(tmp_path / name, CONTENT).read_bytes()
        for position in rng.integers(0, len(whole), 60):
            (tmp_path / name).write_bytes(whole[:position] + rng.bytes(4) + whole[position + 4 :])
            try:
                read_features(tmp_path / name)
            except FeatureFileError as error:
                messages.append(str(error))
    assert len(messages) > 50
    assert all(" must " in message and "\n" not in message for message in messages)


def test_other_entries_of_pt_files_are_ignored(tmp_path: Path) -> None:
    content = {key: torch.from_numpy(value) for key, value in CONTENT.items()}
    torch.save(
        content | {"class_names": ["a", "b"], "bias": None, "epoch": 3}, tmp_path / "FILE.PT"
    )
    found = read_features(tmp_path / "FILE.PT")
    assert found.class_names == ["a", "b"]
    assert found.bias is None
    negated = content | {"features": torch.complex(*torch.ones(2, 4, 3)).conj().imag}
    torch.save(negated, tmp_path / "negative.pt")
    features = read_features(tmp_path / "negative.pt").features
    assert np.asarray(features)[0, 0] == -1, "NumPy cannot read a tensor with a pending negation"


def test_written_features_are_read_again(tmp_path: Path) -> None:
    tensors = {key: torch.from_numpy(value) for key, value in CONTENT.items()}
    content = FeatureFile(**tensors, class_names=["a", "b"])
    write_features(tmp_path / "features.npz", content)
    found = read_features(tmp_path / "features.npz")
    for key, value in CONTENT.items():
        np.testing.assert_array_equal(getattr(found, key), value)
    assert found.class_names == ["a", "b"]
    write_features(tmp_path / "features.npz", FeatureFile(CONTENT["features"], CONTENT["labels"]))
    found = read_features(tmp_path / "features.npz")
    assert (found.prototypes, found.bias, found.class_names) == (None, None, None)


def test_labels_can_be_optional(tmp_path: Path) -> None:
    path = _write(tmp_path / "file.npz", {"features": CONTENT["features"]})
    assert len(read_features(path, labels=None).labels) == 0
    path = _write(tmp_path / "file.npz", CONTENT)
    assert len(read_features(path, labels=None).labels) == 4

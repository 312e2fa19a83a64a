"""Releases: printed, saved and loaded without pickle, exported; nothing in them is the key or the rows."""

import dataclasses
import io
import json
import os
import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdpcov
from jaxdpcov import ZCDP, Bounds, DiagonalConfig, GaussianConfig, PureDP, Release, diagonal, gaussian, laplace, status
from jaxdpcov.release import SCHEMA_VERSION, column_names, load
from tests import contract_cases as cases

X = np.random.default_rng(0).normal(size=(20, 3))
BOX = Bounds.box(np.array([-1.0, -2.0, -3.0]), np.array([1.0, 2.0, 4.0]))


def make(seed: int = 0) -> Release:
    return gaussian(jax.random.key(seed), X, ZCDP(0.5), BOX)


@pytest.fixture(scope="module")
def release() -> Release:
    return make()


def kinds(request) -> Release:
    key = jax.random.key(1)
    if request == "pure":
        return laplace(key, X, PureDP(1.0), Bounds.l2(2.0, 0.5))
    if request == "no mean":
        return gaussian(key, X, ZCDP(0.5), Bounds.l2(2.0), config=GaussianConfig(center="pairs"))
    if request == "add_remove":
        return diagonal(key, X, ZCDP(0.5), BOX, config=DiagonalConfig(relation="add_remove", psd="none"))
    if request == "float32":
        return gaussian(key, X.astype(np.float32), ZCDP(0.5), BOX)
    if request == "batched":
        return jax.vmap(lambda k: gaussian(k, X, ZCDP(0.5), BOX))(jax.random.split(key, 4))
    if request == "failed closed":
        return gaussian(key, X, cases.with_amount(ZCDP(1.0), jnp.nan), BOX)
    named = dataclasses.replace(make(), columns=("größe", "line\nend", "c"), unit="person", key_source="study")
    return dataclasses.replace(
        named, extra={"kept": np.array([True, False]), "level": np.int32(3), "nested": {"a": (1, None)}}
    )


KINDS = ["pure", "no mean", "add_remove", "float32", "batched", "failed closed", "named"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_release_loads_as_it_was(kind: str, tmp_path) -> None:
    """Every leaf to the last bit and in its dtype, every static field; it works as a release, and saves again."""
    saved = kinds(kind)
    saved.save(tmp_path / "r.npz")
    loaded = load(tmp_path / "r.npz")
    assert jax.tree_util.tree_structure(loaded) == jax.tree_util.tree_structure(saved)
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(saved), jax.tree_util.tree_leaves_with_path(loaded), strict=True
    ):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), path
    assert str(loaded) == str(saved)
    if kind != "no mean":
        np.testing.assert_array_equal(loaded.correlation, saved.correlation)
    loaded.save(tmp_path / "again.npz")
    assert str(load(tmp_path / "again.npz")) == str(saved)
    assert sorted(os.listdir(tmp_path)) == ["again.npz", "r.npz"]  # nothing temporary is left


@pytest.mark.x64_off
def test_a_float64_release_loads_in_float64_without_x64(tmp_path) -> None:
    with jax.enable_x64(True):
        saved = make()
        saved.save(tmp_path / "r")
    loaded = load(tmp_path / "r")
    assert loaded.covariance.dtype == np.float64
    assert np.array_equal(loaded.covariance, np.asarray(saved.covariance))


def test_saving_replaces_a_file_whole_and_keeps_it_on_failure(release: Release, tmp_path) -> None:
    path = tmp_path / "r.npz"
    path.write_bytes(b"x" * 100_000)
    release.save(str(path))
    before = path.read_bytes()
    assert len(before) < 100_000
    with pytest.raises(TypeError, match="a release cannot hold a"):
        dataclasses.replace(release, extra={"bad": object()}).save(path)
    assert path.read_bytes() == before
    with pytest.raises(OSError):
        release.save(tmp_path / "no such folder" / "r.npz")
    assert load(path).mechanism == "gaussian" and os.listdir(tmp_path) == ["r.npz"]


class Bomb:
    """What a pickle would run."""

    def __reduce__(self):
        return (os.mkdir, ("/tmp/jaxdpcov-was-here",))


def _npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _document(release: Release, tmp_path) -> tuple[dict, dict]:
    release.save(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if name != "metadata"}
        return json.loads(bytes(stored["metadata"])), arrays


def _write(path, document, arrays) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_bytes(_npz(metadata=np.frombuffer(text.encode(), np.uint8), **arrays))


def test_anything_else_is_refused_and_nothing_in_it_runs(release: Release, tmp_path) -> None:
    document, arrays = _document(release, tmp_path)
    good = (tmp_path / "good.npz").read_bytes()
    path = tmp_path / "bad.npz"
    foreign = {
        "empty": b"",
        "text": b"a,b\n1,2\n",
        "truncated": good[: len(good) // 2],
        "damaged in the middle": good[: len(good) // 2] + bytes(64) + good[len(good) // 2 + 64 :],
        "a pickle": pickle.dumps(Bomb()),
        "one array": _npy(np.ones(3)),
        "another npz": _npz(a=np.ones(3)),
        "pickled metadata": _npz(metadata=np.array([Bomb()], object)),
        "a pickled leaf": _npz(metadata=np.frombuffer(json.dumps(document).encode(), np.uint8),
                               **(arrays | {"a0": np.array([Bomb()], object)})),
        "metadata that is no text": _npz(metadata=np.full(4, 255, np.uint8)),
    }  # fmt: skip
    for name, content in foreign.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.npz is (not a|a damaged) release file"):
            load(path)
        assert not os.path.exists("/tmp/jaxdpcov-was-here"), name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.npy", b"not an array")
    with pytest.raises(ValueError, match="not a release file"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    with pytest.raises(OSError):
        load(tmp_path)


def _npy(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _changed(document: dict, **fields) -> dict:
    changed = json.loads(json.dumps(document))
    changed["release"]["fields"].update(fields)
    return changed


def test_damaged_documents_are_refused(release: Release, tmp_path) -> None:
    document, arrays = _document(release, tmp_path)
    path = tmp_path / "bad.npz"
    without = json.loads(json.dumps(document))
    del without["release"]["fields"]["mean"]
    damaged = {
        "no json": "{",
        "a list": "[]",
        "deep nesting": "[" * 100_000,
        "another format": document | {"format": "other"},
        "another record": document | {"release": document["release"] | {"record": "ZCDP"}},
        "an unknown record": document | {"release": document["release"] | {"record": "Unknown"}},
        "a missing field": without,
        "a surplus field": _changed(document, surplus=1),
        "a missing array": _changed(document, mean={"array": "a99"}),
        "an array by no name": _changed(document, mean={"array": [1]}),
        "an empty node": _changed(document, mean={}),
        "no version": _changed(document, schema_version=None),
        "a version in words": _changed(document, schema_version="one"),
        "a covariance of text": _changed(document, covariance="text"),
        "a unit of nothing": _changed(document, unit="nothing"),
    }  # fmt: skip
    for name, content in damaged.items():
        _write(path, content, arrays)
        with pytest.raises(ValueError, match=r"bad\.npz is (not a|a damaged) release file"):
            load(path)
            pytest.fail(f"accepted: {name}")
    _write(path, _changed(document, schema_version=SCHEMA_VERSION + 1), arrays)
    with pytest.raises(ValueError, match=f"schema version {SCHEMA_VERSION + 1}; this jaxdpcov reads up to"):
        load(path)
    _write(path, document, arrays)
    assert str(load(path)) == str(release)


def test_a_release_prints_as_a_short_table(release: Release) -> None:
    text = str(release)
    assert len(text.splitlines()) < 15 and max(map(len, text.splitlines())) < 120
    for part in ("gaussian", "n = 20", "d = 3", "0.5-zCDP", "one row (not one person", "replace", "x0", "x2", "ledger"):
        assert part in text, part
    for entry in ("sum of z", "sum of z z^T", "sensitivity", "scale", "rho"):
        assert entry in text
    assert "STUDY" not in text
    named = str(kinds("named"))
    assert "FOR STUDY ONLY" in named and "one person" in named and "größe" in named and "line\\nend" in named
    assert str(kinds("batched")) == "Release(gaussian, batch (4,), d = 3)"
    assert "invalid budget: the result is NaN" in str(kinds("failed closed"))
    noisy = str(kinds("add_remove"))
    assert "noisy n" in noisy and "n = 20," not in noisy
    wide = gaussian(jax.random.key(0), np.zeros((4, 40)), ZCDP(0.5), Bounds.l2(1.0))
    assert "... 28 more columns" in str(wide) and len(str(wide).splitlines()) < 25


def test_a_release_holds_no_key_and_no_rows() -> None:
    """Not among its leaves, not in its file: with the key, anyone could take the noise away."""
    secret = 0.123456789012345
    x = np.full((20, 3), secret)
    key = jax.random.key(987654321)
    found = gaussian(key, x, ZCDP(0.5), BOX)
    words = set(np.asarray(jax.random.key_data(key)).ravel().tolist())
    for path, leaf in cases.paths(found).items():
        assert not np.any(leaf == secret), path
        assert not (leaf.dtype == np.uint32 or words & set(np.ravel(leaf).tolist()) - {0}), path


def test_exports(release: Release, tmp_path) -> None:
    frame = release.to_pandas()
    assert list(frame.columns) == list(frame.index) == ["x0", "x1", "x2"]
    np.testing.assert_array_equal(frame.to_numpy(), release.covariance)
    assert list(kinds("named").to_pandas().columns) == ["größe", "line\nend", "c"]
    for kind in KINDS:
        found = kinds(kind)
        if kind == "batched":
            for export in (found.to_pandas, found.to_dict):
                with pytest.raises((TypeError, ValueError)):
                    export()
            continue
        text = json.dumps(found.to_dict())
        back = json.loads(text)
        np.testing.assert_array_equal(np.array(back["covariance"], float), np.asarray(found.covariance, float))
        assert back["columns"] == column_names(found) and back["relation"] == found.relation
        assert back["spent"].keys() == {type(found.spent).__name__}
        total = sum(row.get("rho", row.get("epsilon")) for row in back["ledger"])
        assert total == pytest.approx(
            next(iter(back["spent"].values()))["epsilon" if kind == "pure" else "rho"], nan_ok=True
        )
        assert (back["mean"] is None) == (found.mean is None)
    assert jaxdpcov.load is load


def test_a_release_is_a_pytree() -> None:
    """It passes through jit, vmap, scan and map, and its lanes are releases."""
    found = make()
    doubled = jax.jit(lambda r: dataclasses.replace(r, covariance=2.0 * r.covariance))(found)
    np.testing.assert_array_equal(doubled.covariance, 2 * found.covariance)
    assert doubled.mechanism == "gaussian"
    keys = jax.random.split(jax.random.key(0), 3)
    body = lambda carry, key: (carry, gaussian(key, jnp.asarray(X), ZCDP(0.5), BOX))  # noqa: E731
    scanned = jax.lax.scan(body, 0, keys)[1]
    together = jax.vmap(lambda key: body(0, key)[1])(jax.random.clone(keys))
    cases.assert_same(scanned, together, rtol=1e-11)
    one = cases.lane(scanned, 1)
    assert "gaussian: n = 20" in str(one) and int(one.status) in (status.OK, status.NOT_PSD)
    assert scanned.std.shape == (3, 3) and scanned.correlation.shape == (3, 3, 3)

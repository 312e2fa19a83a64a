"""Data homes: arrays and streams give the same sums, whatever the blocks, weights, pairs and dtypes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, Rows, gaussian
from jaxdpcov.data import arrays, clip
from jaxdpcov.data import rows as homes
from jaxdpcov.data.rows import as_float_array, as_rows

D = 3


def data(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, D))


def sums(x, weights):
    """A block function as mechanisms have them: weighted sums, and the number of rows that count."""
    weights = jnp.ones(x.shape[0], x.dtype) if weights is None else weights
    return {"gram": jnp.matmul((x * weights[:, None]).T, x), "sum": jnp.sum(x * weights[:, None], 0),
            "count": jnp.sum(weights)}  # fmt: skip


def pair_sums(first, second, valid):
    """Of pairs: the differences' moments, and what tells the pairs apart."""
    valid = jnp.ones(first.shape[0], first.dtype) if valid is None else valid
    difference = (first - second) * valid[:, None]
    return {"gram": jnp.matmul(difference.T, difference), "pairs": jnp.sum(valid),
            "both": jnp.sum((first + second) * valid[:, None], 0)}  # fmt: skip


def numpy_sums(x, weights=None):
    weights = np.ones(len(x)) if weights is None else weights
    gram = sum((w * np.outer(row, row) for row, w in zip(x, weights)), np.zeros((D, D)))
    return {"gram": gram, "sum": weights @ x, "count": weights.sum()}


def close(found, expected, rtol=1e-12):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-9, err_msg=name)


def chunked(x, sizes, *, block_rows=8, weights=None, n=None):
    ends = np.cumsum(sizes)[:-1]
    values, weight_blocks = np.split(x, ends), None if weights is None else np.split(weights, ends)
    blocks = values if weight_blocks is None else list(zip(values, weight_blocks))
    return Rows.chunked(lambda: iter(blocks), d=x.shape[1], n=n, block_rows=block_rows, weighted=weights is not None)


# Arrays.


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 640, 700])
def test_array_slices_cover_every_row_once(n: int, monkeypatch) -> None:
    """Loops over slices of 64 rows: none, one, several, with and without a tail."""
    monkeypatch.setattr(homes, "BLOCK_ENTRIES", 64 * D)
    x = data(n)
    close(jax.jit(lambda x: Rows.array(x).reduce(sums))(x), numpy_sums(x))
    weights = np.random.default_rng(1).random(n)
    close(jax.jit(lambda x, w: Rows.array(x, w, 5).reduce(sums))(x, weights), numpy_sums(x, weights))


@pytest.mark.parametrize("n", [2, 3, 127, 128, 129, 300])
def test_array_pairs_hold_each_row_once(n: int, monkeypatch) -> None:
    monkeypatch.setattr(homes, "BLOCK_ENTRIES", 64 * 2)
    x = np.concatenate([2.0 ** np.arange(n % 40)[:, None], np.zeros((n - n % 40, 1))]) if n < 40 else data(n)[:, :1]
    found = jax.jit(lambda key: Rows.array(x).reduce_pairs(pair_sums, key))(jax.random.key(0))
    assert float(found["pairs"]) == n // 2
    if n % 2 == 0:
        np.testing.assert_allclose(found["both"], x.sum(0), rtol=1e-12)
    else:  # the sum of all rows but one
        left_out = x.sum() - float(found["both"][0])
        assert np.min(np.abs(x[:, 0] - left_out)) < 1e-9


def test_array_pairs_come_from_the_key_alone() -> None:
    """Four rows have three pairings; keys reach all of them about equally, and one key gives one pairing."""
    x = np.array([[1.0], [2.0], [4.0], [8.0]])
    gram = {(1 - 2) ** 2 + (4 - 8) ** 2: 0, (1 - 4) ** 2 + (2 - 8) ** 2: 0, (1 - 8) ** 2 + (2 - 4) ** 2: 0}
    keys = jax.random.split(jax.random.key(0), 600)
    found = jax.jit(jax.vmap(lambda key: Rows.array(x).reduce_pairs(pair_sums, key)["gram"][0, 0]))(keys)
    for value in np.asarray(found):
        gram[round(float(value))] += 1
    assert sum(gram.values()) == 600 and min(gram.values()) > 140  # 200 expected, sd 11.5: a false alarm is below 1e-6


@pytest.mark.parametrize("n, blocks", [(1, 2), (2, 2), (9, 2), (40, 3), (300, 4)])
def test_array_blocks_are_disjoint_and_of_one_size(n: int, blocks: int, monkeypatch) -> None:
    """Rows that are powers of two (or, many, random): each in one block at most; floor(n / blocks) rows in each."""
    monkeypatch.setattr(homes, "BLOCK_ENTRIES", 64)
    x = 2.0 ** np.arange(n)[:, None] if n <= 40 else data(n)[:, :1]
    one = lambda key, block: Rows.array(x).reduce_block(sums, key, block, blocks)  # noqa: E731
    found = [jax.jit(one, static_argnums=1)(jax.random.key(0), block) for block in range(blocks)]
    assert [float(each["count"]) for each in found] == [n // blocks] * blocks
    if n <= 40:
        held = [int(each["sum"][0]) for each in found]
        assert sum(held) == np.bitwise_or.reduce(held) and bin(sum(held)).count("1") == n // blocks * blocks
    else:
        np.testing.assert_allclose(sum(each["sum"] for each in found), x.sum(0), rtol=1e-12)


def test_array_blocks_come_from_the_key_alone() -> None:
    """Which of six rows is where: each is in the first of two blocks about as often as not, whatever it holds."""
    x = 2.0 ** np.arange(6)[:, None]
    keys = jax.random.split(jax.random.key(0), 600)
    found = jax.jit(jax.vmap(lambda key: Rows.array(x).reduce_block(sums, key, 0, 2)["sum"][0]))(keys)
    inside = (np.asarray(found).astype(int)[:, None] >> np.arange(6)) & 1
    assert np.all(inside.sum(1) == 3) and np.all(np.abs(inside.sum(0) - 300) < 65)  # 5.3 sd: a false alarm at 1e-6


@pytest.mark.parametrize("n, given", [(3, True), (37, True), (37, False)])
def test_stream_blocks_are_dealt_out_in_turn(n: int, given: bool) -> None:
    x, blocks = data(n), 4
    rows = chunked(x, [n // 3, n - n // 3], block_rows=8, n=n if given else None)
    for block in range(blocks):
        found = rows.reduce_block(sums, jax.random.key(0), block, blocks)
        close(found, numpy_sums(x[: n // blocks * blocks][block::blocks]))


def test_weights_count_and_pad() -> None:
    """A weight of 0 is padding; a person's rows that share weight 1 count as their mean row does in sums."""
    x = data(6)
    padded = np.concatenate([x, np.full((3, D), 7.0)])
    close(Rows.array(padded, np.repeat([1.0, 0.0], [6, 3]), 6).reduce(sums), numpy_sums(x))
    person = np.repeat(x[:1], 4, axis=0)
    close(Rows.array(person, np.full(4, 0.25), 1).reduce(sums), numpy_sums(x[:1]))
    assert Rows.array(person, np.full(4, 0.25), 1).count() == 1


def test_weights_outside_the_unit_interval_are_clipped() -> None:
    """A weight above 1 would raise the sensitivity; one that is not finite or negative must not either."""
    x = np.ones((6, 1))
    wild = np.array([5.0, -2.0, np.nan, np.inf, -np.inf, 0.5])
    assert float(Rows.array(x, wild, 3).reduce(sums)["count"]) == 1.0 + 0.0 + 0.0 + 1.0 + 0.0 + 0.5
    assert float(chunked(x, [4, 2], weights=wild, n=3).reduce(sums)["count"]) == 2.5


def test_padded_rows_change_nothing_in_a_release() -> None:
    x = data(9)
    padded = np.concatenate([x, np.full((4, D), 1e300), np.full((2, D), np.nan)])
    weights = np.repeat([1.0, 0.0], [9, 6])
    for config in (GaussianConfig(), GaussianConfig(relation="add_remove", psd="none")):
        arguments = (ZCDP(0.5), Bounds.l2(1.0))
        left = gaussian(jax.random.key(0), x, *arguments, config=config)
        right = gaussian(jax.random.key(0), Rows.array(padded, weights, 9), *arguments, config=config)
        np.testing.assert_allclose(left.covariance, right.covariance, rtol=1e-9)
        np.testing.assert_allclose(left.mean, right.mean, rtol=1e-9)


# Streams.


@pytest.mark.parametrize("block_rows", [2, 3, 8, 64, 1000])
@pytest.mark.parametrize("sizes", [[37], [1] * 37, [0, 5, 0, 32], [16, 16, 5], [8, 8, 8, 8, 5], [36, 1]], ids=str)
def test_a_stream_is_the_array_whatever_the_blocks(sizes: list[int], block_rows: int) -> None:
    x = data(37)
    weights = np.random.default_rng(1).random(37)
    close(chunked(x, sizes, block_rows=block_rows).reduce(sums), numpy_sums(x))
    close(chunked(x, sizes, block_rows=block_rows, weights=weights, n=20).reduce(sums), numpy_sums(x, weights))
    assert float(chunked(x, sizes, block_rows=block_rows).count()) == 37


@pytest.mark.parametrize("n", [2, 3, 8, 9, 16, 37])
@pytest.mark.parametrize("block_rows", [2, 3, 8])
def test_stream_pairs_are_neighbours_in_order_of_arrival(n: int, block_rows: int) -> None:
    """Each row in one pair, none across the cut of two source blocks lost; an odd row is left out."""
    x = data(n)
    rows = chunked(x, [n // 3, n - n // 3], block_rows=block_rows)
    found = rows.reduce_pairs(pair_sums, jax.random.key(0))
    pairs = [(x[2 * i], x[2 * i + 1]) for i in range(n // 2)]
    expected = {
        "gram": sum(np.outer(a - b, a - b) for a, b in pairs),
        "pairs": n // 2,
        "both": sum(a + b for a, b in pairs),
    }
    close(found, expected)
    assert float(rows.count()) == n


def test_blocks_of_a_stream_may_be_other_arrays() -> None:
    x = data(10)
    blocks = [x[:3].astype(np.float32), np.asfortranarray(x[3:5]), jnp.asarray(x[5:6]), x[::-1][:4][::-1]]
    found = Rows.chunked(lambda: iter(blocks), d=D, block_rows=4).reduce(sums)
    close(found, numpy_sums(x), rtol=1e-6)
    whole = Rows.chunked(lambda: iter([np.arange(6).reshape(2, 3), np.ones((1, 3), bool)]), d=3).reduce(sums)
    np.testing.assert_allclose(whole["sum"], [4.0, 6.0, 8.0])


def test_a_stream_of_any_length_compiles_two_steps() -> None:
    """The step's two traces, counted on the Python side: nothing else of a stream is compiled for another length."""
    traces = []

    def counted(x, weights):
        traces.append(x.shape)
        return jnp.sum(x * weights[:, None])

    for n in (1, 5, 8, 9, 17, 24, 30, 31, 32, 100):
        x = data(n)
        found = chunked(x, [n]).reduce(counted)
        np.testing.assert_allclose(found, x.sum(), atol=1e-12)
    assert traces == [(8, D), (8, D)]


def test_a_stream_is_read_once_for_a_release() -> None:
    reads = []

    def blocks():
        reads.append(1)
        yield data(20)

    rows = Rows.chunked(blocks, d=D, block_rows=8)
    gaussian(jax.random.key(0), rows, ZCDP(0.5), Bounds.l2(1.0))
    assert len(reads) == 1


def test_mismatched_and_empty_streams_say_so() -> None:
    empty = Rows.chunked(lambda: iter([]), d=D)
    with pytest.raises(ValueError, match="the data have no rows"):
        gaussian(jax.random.key(0), empty, ZCDP(0.5), Bounds.l2(1.0))
    with pytest.raises(ValueError, match="the data have no rows"):
        Rows.chunked(lambda: iter([np.zeros((0, D))]), d=D).reduce(sums)
    with pytest.raises(ValueError, match="number of rows differs from n="):
        chunked(data(10), [10], n=11).reduce(sums)
    once = iter([data(10), data(4)])
    rows = Rows.chunked(lambda: once, d=D)
    rows.reduce(sums)
    with pytest.raises(ValueError, match="no rows"):
        rows.reduce(sums)  # a generator that is used up
    calls = []
    growing = Rows.chunked(lambda: (calls.append(1), iter([data(5 + len(calls))]))[1], d=D)
    growing.reduce(sums)
    with pytest.raises(ValueError, match="differs from n= or from an earlier pass"):
        growing.reduce(sums)
    for block in (np.zeros((2, D + 1)), np.zeros(D), np.zeros((1, 1, D))):
        with pytest.raises(ValueError, match=rf"a block must have shape \(m, {D}\)"):
            Rows.chunked(lambda block=block: iter([block]), d=D).reduce(sums)
    with pytest.raises(ValueError, match="weights"):
        Rows.chunked(lambda: iter([(data(3), np.ones(2))]), d=D, n=3, weighted=True).reduce(sums)
    for options, message in (
        ({"d": 0}, "d must be at least 1"),
        ({"d": 1, "block_rows": 1}, "block_rows must be at least 2"),
        ({"d": 1, "n": 0}, "n must be finite and > 0"),
        ({"d": 1, "weighted": True}, "need n="),
    ):
        with pytest.raises(ValueError, match=message):
            Rows.chunked(lambda: iter([]), **options)


def test_messages_hold_no_values() -> None:
    """Text in a block is refused by its dtype; NumPy's own message would quote the cell."""
    for secret in (np.array([["8675309", "x"]]), np.array([["8675309", 1.0]], object), np.array([[8675309 + 1j, 0]])):
        with pytest.raises(TypeError, match="rows must be numbers, got a block of dtype") as caught:
            Rows.chunked(lambda secret=secret: iter([secret]), d=2).reduce(sums)
        assert "8675309" not in str(caught.value)


def test_array_arguments_are_checked() -> None:
    x = data(4)
    for bad in (np.ones(3), np.ones((4, 1)), 1.0):
        with pytest.raises(ValueError, match=r"weights must have shape \(4,\)"):
            Rows.array(x, bad, 4)
    with pytest.raises(ValueError, match="weights need n="):
        Rows.array(x, np.ones(4))
    for bad in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match="n must be finite and > 0"):
            Rows.array(x, n=bad)
    for rows in (Rows.array(x, np.ones(4), 2), chunked(x, [4], weights=np.ones(4), n=2)):
        with pytest.raises(ValueError, match="needs unweighted rows"):
            rows.reduce_pairs(pair_sums, jax.random.key(0))
        with pytest.raises(ValueError, match="need unweighted rows"):
            rows.reduce_block(sums, jax.random.key(0), 0, 2)
    table = Rows.array(x).level_moments(Bounds.l2(1.0))
    with pytest.raises(ValueError, match="blocks of rows need the rows"):
        table.reduce_block(sums, jax.random.key(0), 0, 2)
    rows = Rows.array(x)
    assert as_rows(rows) is rows and as_rows(x).d == D and not rows.weighted


def test_rows_pass_through_jit_and_vmap() -> None:
    x = data(8).reshape(2, 4, D)
    rows = jax.vmap(lambda each: Rows.array(each))(jnp.asarray(x))
    found = jax.jit(jax.vmap(lambda each: each.reduce(sums)))(rows)
    for i in range(2):
        close(jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], found), numpy_sums(x[i]))


# Dtypes.


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.ones((2, 2), np.float64), np.float64),
        (np.ones((2, 2), np.float32), np.float32),
        (np.ones((2, 2), np.float16), np.float32),
        (np.ones((2, 2), np.longdouble), np.float64),
        (np.ones((2, 2), ">f8"), np.float64),
        (np.ones((2, 2), np.int8), np.float64),
        (np.ones((2, 2), np.uint64), np.float64),
        (np.ones((2, 2), bool), np.float64),
        ([[1, 2], [3, 4]], np.float64),
        ([[1.5, 2], [3, True]], np.float64),
    ],
    ids=str,
)
def test_dtype_of_rows(values, dtype) -> None:
    assert as_float_array(values).dtype == dtype
    np.testing.assert_array_equal(as_float_array(values), np.asarray(values, float))
    assert as_float_array(jnp.ones((2, 2), jnp.bfloat16)).dtype == np.float32
    assert as_float_array(jnp.ones((2, 2), jnp.int32)).dtype == np.float64


@pytest.mark.x64_off
@pytest.mark.parametrize("home", ["array", "list", "stream"])
def test_float64_rows_without_x64_warn_once(home: str, monkeypatch) -> None:
    """One warning per process, and it says what to do; float32 and whole numbers say nothing."""
    monkeypatch.setattr(arrays, "_warned_float32", False)

    def read(x):
        if home == "stream":
            return Rows.chunked(lambda: iter([x]), d=D, block_rows=8)
        return x.tolist() if home == "list" else x

    def run(x):
        return gaussian(jax.random.key(0), read(x), ZCDP(0.5), Bounds.l2(1.0), config=GaussianConfig(center="zero"))

    if home != "list":
        assert run(data(4).astype(np.float32)).covariance.dtype == np.float32
        run(np.ones((4, D), np.int32))
    with pytest.warns(UserWarning, match="jax_enable_x64") as caught:
        release = run(data(4))
    assert len(caught) == 1 and release.covariance.dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(data(4))
    assert {leaf.dtype for leaf in jax.tree_util.tree_leaves(release)} <= {np.dtype(np.float32), np.dtype(np.int32)}


@pytest.mark.x64_off
@pytest.mark.parametrize("home", ["array", "stream"])
def test_a_huge_row_gives_no_warning_of_its_own(home: str, monkeypatch) -> None:
    """Casting 1e300 to float32 overflows: NumPy's warning would tell that such a row is there."""
    monkeypatch.setattr(arrays, "_warned_float32", True)
    x = data(4)
    x[2] = 1e300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = x if home == "array" else Rows.chunked(lambda: iter([x]), d=D, block_rows=8)
        release = gaussian(jax.random.key(0), rows, ZCDP(0.5), Bounds.l2(1.0))
    assert np.all(np.isfinite(release.covariance))


@pytest.mark.x64_off
def test_wide_offsets_in_float32() -> None:
    """X ~ N(1000, 1), n = 1e5: variances within 1% when a public centre or box is near (scenario of many reports)."""
    x = (1000.0 + np.random.default_rng(0).normal(size=(100_000, 2))).astype(np.float32)
    truth = np.var(x.astype(float), axis=0)
    for bounds in (Bounds.l2(12.0, 1000.0), Bounds.l2(12.0, np.array([1000.0, 1001.0])), Bounds.box(990.0, 1010.0)):
        release = gaussian(jax.random.key(0), x, ZCDP(1e4), bounds)
        assert release.covariance.dtype == np.float32
        np.testing.assert_allclose(np.diagonal(release.covariance), truth, rtol=0.01)
        np.testing.assert_allclose(release.mean, [1000.0, 1000.0], atol=0.05)
    sloppy = np.mean(x * x, axis=0, dtype=np.float32) - np.mean(x, axis=0, dtype=np.float32) ** 2
    assert np.any(np.abs(sloppy / truth - 1) > 0.01)  # what one pass about zero gives
    rows = Rows.chunked(lambda: iter(np.split(x, 10)), d=2)
    release = gaussian(jax.random.key(0), rows, ZCDP(1e4), Bounds.box(990.0, 1010.0))
    np.testing.assert_allclose(np.diagonal(release.covariance), truth, rtol=0.01)


def test_rows_outside_the_bounds_are_clipped_in_every_home() -> None:
    x = data(9) * 100.0
    bounds = Bounds.box(-1.0, 2.0)
    frame = clip.frame(bounds, D, np.float64)
    for rows in (Rows.array(x), chunked(x, [4, 5])):
        found = rows.reduce(_mapped, frame)
        expected = (np.clip(x, -1, 2) - 0.5) / 1.5
        np.testing.assert_allclose(found["gram"], expected.T @ expected, rtol=1e-12)


def _mapped(x, weights, frame):
    return sums(frame.rows(x), weights)

"""What every registered mechanism keeps to at odd shapes in float32, and when rows come as a stream of blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import Rows, status
from tests import contract_cases as cases
from tests.contract_cases import GAUSSIAN, ONE, SEVERAL, Example

KEY = jax.random.key(21)


def key() -> jax.Array:
    return jax.random.clone(KEY)


def single(example: Example, x: np.ndarray, rho: float | None = None):
    """A release of float32 rows, whatever their shape."""
    budget = example.budget if rho is None else cases.high_budget(example.budget, rho)
    x = np.asarray(x, np.float32)[:, : example.case.columns]
    return cases.call(example, key(), x, budget, example.bounds(x.shape[1]), example.config)


HUGE = np.finfo(np.float32).max

#: Two rows in five columns, n < d.
ROWS = {
    "generic": cases.rows(2, 5),
    "zero": np.zeros((2, 5)),
    "1e30": np.array([[1e30, -1e30, 0.0, 1e-30, 1.0], [0.1, 0.2, 0.3, 0.4, 0.5]]),
    "largest float": np.full((2, 5), HUGE),
    "overflow of a difference": np.array([[HUGE, -HUGE, 0.0, 0.0, 0.0], [-HUGE, HUGE, HUGE, 1.0, 2.0]]),
    "subnormal": np.full((2, 5), 1e-44),
    "not finite": np.array([[np.nan, 0.0, 0.0, 0.0, 0.0], [np.inf, -np.inf, 0.0, 0.0, 0.0]]),
    "duplicates": np.full((2, 5), 0.6),
}


@pytest.mark.parametrize("example", SEVERAL, ids=str)
def test_fewer_rows_than_columns_in_float32(example: Example) -> None:
    for rows in ROWS.values():
        for rho in (None, 1e-8, 1e8):
            release = single(example, rows, rho)
            assert cases.answer(release).dtype == np.float32
            for name, leaf in cases.paths(release).items():
                assert leaf.dtype != np.float64, name
            cases.assert_sound(release, psd=example.psd)
    release = single(example, ROWS["generic"])
    # The ledger stays within the budget in float32 too.
    assert float(cases.amount(release.spent)) <= cases.amount(example.budget)
    assert float(cases.amount(release.spent)) >= (1 - 1e-5) * cases.amount(example.budget)


@pytest.mark.parametrize("example", [e for e in SEVERAL if e.case.limit], ids=str)
def test_the_limit_without_noise_in_float32(example: Example) -> None:
    """With two rows there is one pair, so that pairs have a limit too."""
    x = cases.rows(2, 5).astype(np.float32)
    budget = cases.high_budget(example.budget, 1e8)
    release = single(example, x, 1e8)
    limit = example.case.limit(example, x.astype(float), example.bounds(5), example.config, budget, release)
    size = np.linalg.norm(limit.covariance)
    assert np.linalg.norm(np.asarray(release.covariance) - limit.covariance) <= 6 * limit.covariance_scale + 1e-5 * size
    if limit.mean is not None and release.mean is not None:
        assert np.linalg.norm(np.asarray(release.mean) - limit.mean) <= 6 * limit.mean_scale + 1e-5


SMALLEST = [e for e in SEVERAL if e in ONE or e.min_rows > 1 or str(e) == "gaussian-ZCDP-box-default"]


@pytest.mark.parametrize("example", SMALLEST, ids=str)
def test_the_smallest_data_set(example: Example) -> None:
    """n = 1 (or the one pair) and d = 1."""
    for value in (0.3, 0.0, 1e30, HUGE, np.nan, -np.inf):
        cases.assert_sound(single(example, np.full((example.min_rows, 1), value)), psd=example.psd)
    if example.min_rows == 2:  # one row makes no pair: NaN and a status, from the public n alone
        release = single(example, np.full((1, 1), 0.3))
        assert np.all(np.isnan(cases.answer(release))) and int(release.status) & status.INVALID_BOUNDS


# Streams.


def stream(x: np.ndarray, sizes: list[int], **options) -> Rows:
    """Rows in blocks of the given sizes, cut anew to 8 rows."""
    ends = np.cumsum(sizes)
    assert ends[-1] == len(x)
    return Rows.chunked(lambda: iter(np.split(x, ends[:-1])), d=x.shape[1], block_rows=8, **options)


#: The others read their rows in the same way as one of these.
PATHS = (
    "adaptive",
    "auto",
    "clipped_separate",
    "coinpress_covariance",
    "coinpress_mean",
    "diagonal",
    "emcov",
    "pace",
    "pgce",
    "product_mean",
)
STREAMED = [e for e in ONE if e.mechanism.name in PATHS]
STREAMED += [e for e in SEVERAL if str(e) in ("gaussian-ZCDP-l2-default", "gaussian-ZCDP-box-add_remove")]
assert all(e.case.row_sums(e.config) for e in STREAMED)


@pytest.mark.parametrize("example", STREAMED, ids=str)
def test_a_stream_is_the_array_and_other_lengths_compile_nothing(example: Example) -> None:
    """Same key, same release; then nine data sets of other lengths, other rho, other bounds: no program is compiled."""
    x = example.rows(61, seed=3)
    x[5], x[17, 0] = np.nan, 1e300
    budget, bounds, config = cases.in_arrays((example.budget, example.bounds(), example.config))
    array = cases.call(example, key(), x, budget, bounds, config)
    first: list = []

    def start() -> object:
        first.append(cases.call(example, key(), stream(x, [1, 30, 0, 30]), budget, bounds, config))
        return first[0]

    compiled = cases.compilations(start)
    # Of each pass over the rows, one step starts the total and one adds to it; all the rest once or twice a pass.
    steps = sum("step" in name for name in compiled)
    assert steps <= 2 * example.case.passes, compiled
    rest = [compiled.count(name) for name in compiled if "step" not in name and "jit(_" in name]
    assert max(rest, default=0) <= 2 * example.case.passes, compiled
    cases.assert_same(array, first[0], rtol=1e-10)
    for n in (1, 7, 8, 9, 16, 23, 40, 62, 100):
        number = 0.5 + 0.01 * n
        numbers = jax.tree_util.tree_map(lambda leaf, number=number: number * leaf, (budget, bounds, config))
        rows = stream(example.rows(n, seed=n), [n // 2, n - n // 2])
        assert cases.compilations(lambda rows=rows, numbers=numbers: cases.call(example, key(), rows, *numbers)) == []


def test_an_array_of_another_length_is_traced_anew() -> None:
    """What the test above would see if streams compiled for each length."""
    example = GAUSSIAN
    cases.call(example, key(), cases.rows(9), example.budget, example.bounds(), example.config)
    again = lambda: cases.call(example, key(), cases.rows(10), example.budget, example.bounds(), example.config)  # noqa: E731
    assert cases.compilations(again) != []


def test_lanes_of_keys_over_a_stream() -> None:
    """A study over keys reads the stream once."""
    example, reads = GAUSSIAN, []
    x = cases.rows(20)

    def blocks():
        reads.append(1)
        return iter([x[:11], x[11:]])

    rows = Rows.chunked(blocks, d=cases.D, n=20, block_rows=8)
    keys = jax.random.split(key(), 3)
    one = lambda k, r: cases.call(example, k, r, example.budget, example.bounds(), example.config)  # noqa: E731
    together = jax.vmap(lambda k: one(k, rows))(keys)
    assert len(reads) == 1
    cases.assert_same(together, jax.vmap(lambda k: one(k, jnp.asarray(x)))(jax.random.clone(keys)), rtol=1e-10)

"""Distinct values and counts agree with NumPy's, in fixed shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import Rows
from jaxdpcov.data.tally import tally


@pytest.mark.parametrize("n", [1, 2, 37])
def test_tally_is_unique(n: int) -> None:
    x = np.random.default_rng(n).integers(-2, 3, (n, 2)).astype(float)
    values, counts = jax.jit(lambda x: tally(Rows.array(x), lambda y: y))(x)
    assert values.shape == counts.shape == (n, 2)
    for k in range(2):
        expected = dict(zip(*np.unique(x[:, k], return_counts=True)))
        used = np.asarray(counts[:, k]) > 0
        assert dict(zip(np.asarray(values[used, k]), np.asarray(counts[used, k]))) == expected


def test_homes_without_all_rows_are_refused() -> None:
    with pytest.raises(TypeError, match="in memory"):
        tally(Rows.chunked(lambda: iter([np.ones((2, 1))]), d=1), lambda y: y)
    with pytest.raises(ValueError, match="unweighted"):
        tally(Rows.array(jnp.ones((2, 1)), jnp.ones(2), 2.0), lambda y: y)

"""CoinPress: the default number of rounds, traced public numbers, the split and the ledger."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    CoinPressConfig,
    PureDP,
    coinpress_covariance,
    coinpress_mean,
    coinpress_mean_1d,
)
from jaxdpcov.mechanisms.coinpress import rounds
from jaxdpcov.privacy import ledger
from tests.mechanisms.coinpress_cases import (
    covariance,
    gaussian_rows,
    key,
)


def test_the_default_rounds_are_what_they_choose_and_grow_with_the_range() -> None:
    x = gaussian_rows(4000)
    chosen = []
    for upper in (1.0, 500.0, 1e6):
        bounds = Bounds.spectrum(1.0, upper)
        default = covariance(x, 0.5, CoinPressConfig(center="zero"), bounds=bounds)
        explicit = CoinPressConfig(rounds=default.config.rounds, center="zero")
        explicit = covariance(x, 0.5, explicit, bounds=bounds)
        np.testing.assert_array_equal(default.covariance, explicit.covariance)
        chosen.append(default.config.rounds)
    assert chosen[0] == 1 and chosen[0] < chosen[1] < chosen[2] <= rounds.TRIED
    assert covariance(x, 0.5, CoinPressConfig(split=(0.1, 0.2, 0.7), center="zero")).config.rounds == 3


@pytest.mark.parametrize("constants", ["practical", "theory"])
def test_the_default_rounds_are_near_the_best(constants: str) -> None:
    """By simulation: far better than one round, and one more does not help."""
    n, d, upper, rho = 2000, 3, 100.0, 0.5
    default = rounds.covariance_rounds(n, d, upper, rho, constants, "goe", 0.05)
    assert 2 < default < 7
    errors = {}
    for t in (1, default, default + 1):
        config = CoinPressConfig(rounds=t, constants=constants, center="zero")
        run = jax.jit(
            jax.vmap(
                lambda k, x, c=config: (
                    coinpress_covariance(k, x, ZCDP(rho), Bounds.spectrum(1.0, upper), config=c).covariance
                )
            )
        )
        x = np.random.default_rng(t).normal(size=(40, n, d))
        found = np.asarray(run(jax.random.split(key(t), 40), x))
        errors[t] = float(np.mean(np.linalg.norm(found - np.eye(d), axis=(1, 2))))
    assert errors[default] < 1.25 * errors[default + 1]
    assert errors[1] > 2 * errors[default]


def test_traced_budgets_choose_once_and_traced_bounds_need_a_number() -> None:
    x, bounds, zero = gaussian_rows(), Bounds.spectrum(1.0, 500.0), CoinPressConfig(center="zero")
    keys, rhos = jax.random.split(key(), 3), jnp.array([0.1, 1.0, 10.0])
    batch = jax.jit(jax.vmap(lambda k, rho: coinpress_covariance(k, x, ZCDP(rho), bounds, config=zero)))(keys, rhos)
    t = batch.config.rounds
    for i in range(3):
        single = coinpress_covariance(keys[i], x, ZCDP(rhos[i]), bounds, config=dataclasses.replace(zero, rounds=t))
        np.testing.assert_allclose(batch.covariance[i], single.covariance, rtol=1e-9, atol=1e-9 * 400)
    with pytest.raises(TypeError, match="rounds=None.*upper, which is traced.*rounds=..."):
        jax.jit(lambda u: coinpress_covariance(key(), x, ZCDP(1.0), Bounds.spectrum(1.0, u)))(2.0)
    with pytest.raises(TypeError, match="rounds=None.*mean_radius, which is traced"):
        jax.jit(lambda r: coinpress_mean(key(), x, ZCDP(1.0), Bounds.spectrum(1.0, 2.0, mean_radius=r)))(2.0)


def test_split_and_ledger() -> None:
    x = gaussian_rows()
    config = CoinPressConfig(split=(0.5, 0.3, 0.2), center="zero")
    found = covariance(x, 0.5, config)
    entries = ledger.entries(found.ledger)
    np.testing.assert_allclose([float(e.cost) for e in entries], [0.25, 0.15, 0.1], rtol=1e-12)
    assert sum(float(e.cost) for e in entries) <= 0.5
    for entry in entries:
        assert entry.kind == "gaussian"
        assert float(entry.sensitivity) == pytest.approx(2**0.5)
        assert float(entry.scale) == pytest.approx(2**0.5 / (2 * float(entry.cost)) ** 0.5)
    bounds = Bounds.spectrum(1.0, 500.0, mean_radius=5.0)
    pure = coinpress_mean_1d(key(), x[:, :1], PureDP(2.0), bounds, config=CoinPressConfig(rounds=2))
    assert [(e.kind, e.unit, float(e.cost)) for e in ledger.entries(pure.ledger)] == [
        ("laplace", "epsilon", 0.5),
        ("laplace", "epsilon", pytest.approx(1.5)),
    ]
    assert isinstance(pure.spent, PureDP) and float(pure.spent.epsilon) <= 2.0

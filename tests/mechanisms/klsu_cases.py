"""What the tests of preconditioning share: proven tails for the slow form, and the mechanisms by name."""

from typing import Any

import jax
import numpy as np

from jaxdpcov import KLSUConfig, learn_gaussian, naive_pce, pgce, ppc, private_mean, status, weak_ppc
from jaxdpcov.privacy import tails
from tests.reference import klsu as reference

MECHANISMS = {
    "naive_pce": naive_pce,
    "weak_ppc": weak_ppc,
    "ppc": ppc,
    "pgce": pgce,
    "private_mean": private_mean,
    "learn_gaussian": learn_gaussian,
}


def law(d: int, config: KLSUConfig) -> reference.Law:
    """What the tails are is tested with them; here that they are used where they should be."""
    if config.constants == "practical":
        return reference.Law(config.noise)
    return reference.Law(
        config.noise, lambda b: float(tails.eta(d, b)), lambda b: float(tails.upsilon(d, b, noise=config.noise))
    )


def leaves(release: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(release)]


def assert_sound(release: Any) -> None:
    """Finite, and nothing said against the public numbers."""
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(release))
    assert not np.any(np.asarray(release.status) & (status.INVALID_BOUNDS | status.INVALID_BUDGET))


def without_noise(name: str, y: np.ndarray, kappa: float, rho: float, config: KLSUConfig) -> tuple[np.ndarray, float]:
    """The covariance of rows about their centre, at least I, by the slow form; the size of the noise around it."""
    y, d = reference.pairs(y) if config.center == "pairs" else y, y.shape[1]
    rounds, laws = {"naive_pce": 0, "weak_ppc": 1}.get(name, config.rounds or 0), law(d, config)
    b, drop, quiet = float(config.beta) / (2.0 * (rounds + 1)), config.long_rows == "drop", np.zeros((d, d))
    last: Any
    if name in ("weak_ppc", "ppc"):
        last = reference.precondition(y, kappa, [rho / rounds] * rounds, [quiet] * rounds, b, laws, drop)[-1]
    else:
        costs = reference.costs(rho, rounds, float(config.precondition_share))
        last = reference.pgce(y, kappa, costs, [quiet] * (rounds + 1), b, laws, drop)
    found = reference.back(last.used, reference.floored(last.answer, 0.0 if config.psd != "none" else -np.inf))
    size = d * last.scale * np.linalg.norm(reference.back(last.used, np.eye(d)))
    return reference.floored(found, 1.0) if config.psd == "floor" else found, float(size)

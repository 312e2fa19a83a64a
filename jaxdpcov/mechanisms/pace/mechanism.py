"""PACE: a private covariance from the entries that matter most, one at a time."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.bounds import BoxBounds
from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.mechanisms.pace import common, rounds
from jaxdpcov.mechanisms.pace.config import PaceConfig
from jaxdpcov.privacy.budget import ZCDP
from jaxdpcov.release import Release


@mechanism(config=PaceConfig, budgets=(ZCDP,), bounds=(BoxBounds,), host=True)
def pace(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: PaceConfig) -> Release:
    """Private covariance from its diagonal and the entries that matter most, filled in by maximum entropy.

    Formal guarantee: rho-zCDP for the stated relation. The diagonal of the second moment is one Gaussian mechanism (l2
    sensitivity sqrt(d)/n in z). Then come rounds: an exponential mechanism chooses the entry that the estimate so far
    misses most (score sensitivity 2/n), a Gaussian mechanism measures it (2/n, 1/n on the diagonal). The budget of a
    round depends on what earlier rounds released and the last takes exactly what is left, so that the costs add up to
    rho whatever happened (adaptive composition within a budget fixed in advance). All else is post-processing: the
    covariance is the one of maximum entropy for everything measured. Proofs: docs/guarantees.md.

    It is far better than noise on the whole matrix where few entries are large against the noise: many columns, small
    budgets, sparse or block structure. Where n sqrt(rho) is large it is worse; `auto` chooses privately.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`; one pass. Clipped to `bounds` here; a row that is not finite
        becomes
            the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.box(lower, upper)`, public. lower = upper marks a constant column, which is never asked for.
        config: `PaceConfig`.

    Returns:
        `Release` with covariance (d, d), positive definite but for constant columns, and mean (d,) (None unless
        center="private") in data units. `measured` holds the noisy "diagonal" (and "mean") in z. `extra`, (d, d):
        "measured_mask", the measured entries; "measurements" and "measurement_precision", what they gave together and
        1/std^2 of that, in z; "precision", the inverse of the covariance in data units. `extra["measured_in_round"]`:
        the (rounds, k, 2) columns chosen, -1 where there was no round. `diagnostics`: "rounds", "gap" (nats), and
        "smallest_eigenvalue" in z.

    Raises:
        TypeError, ValueError: for public arguments only, never for what rows hold. Traced arguments that are invalid
        give NaN and a status instead.

    Edge cases:
        Gradients are those of what was measured with the choices and draws held fixed. Status NOT_CONVERGED where the
        last reconstruction missed its tolerance.

    References:
        Ferrando et al. 2026 (PACE-GGM); McKenna, Mullins, Sheldon, Miklau 2022 (AIM); Whitehouse, Ramdas, Rogers, Wu
        2023 (adaptive composition).

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, pace
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> release = pace(jax.random.key(0), x.at[:, 1].set(x[:, 0]), ZCDP(rho=0.5), Bounds.box(0.0, 1.0))
    >>> release.covariance.shape, bool(release.extra["measured_mask"][0, 1])
    ((4, 4), True)
    """
    frame = clip.frame(bounds, rows.d, rows.dtype)
    key_pairs, key = jax.random.split(key)
    sums = _steps.moment_sums(rows, key_pairs, frame, config)
    n = jnp.asarray(rows.count(), rows.dtype)
    opened, centre = common.begin("pace", key, sums, n, frame, budget, config, rounds.valid(config))
    opened, found = rounds.run(opened, sums.second, centre, frame, budget, config)
    return common.close("pace", opened, found, centre, frame, budget, bounds, config)

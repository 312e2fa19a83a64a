"""Private directions: the exponential mechanism on the unit sphere, one eigenvector after another (a Bingham law)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxdpcov.privacy._draws import standard_laplace, standard_normal
from jaxdpcov.privacy.ledger import Entry, Seq


def exponential_directions(
    key: Any,
    matrix: Any,
    *,
    sensitivity: Any,
    monotone: bool = False,
    epsilon: Any = None,
    rho: Any = None,
    live: Any = None,
    what: str,
) -> tuple[Array, Seq]:
    """An orthonormal basis, drawn one direction at a time with density exp(epsilon_i u^T C u / (2 sensitivity)).

    **Formal guarantee.** Each draw is the exponential mechanism on the unit sphere of what the earlier directions left,
    with the score u^T C u: epsilon_i-DP (McSherry and Talwar 2007) and, by its bounded range, (epsilon_i^2/8)-zCDP
    (Cesar and Rogers 2021), where u^T C u changes by at most `sensitivity` between neighbours for every unit u. With
    `monotone`, where all scores move the same way between neighbours, the density is exp(epsilon_i u^T C u /
    sensitivity) at the same cost. The last of d directions is determined, so d - 1 draws share the budget.

    Running time: each draw is exact, by rejection to acceptance, and how many proposals that takes depends on C. The
    count is never returned; running time is a channel outside of the guarantee.

    Args:
        key: one PRNG key, used up.
        matrix: (d, d) exact symmetric statistic C; finite.
        sensitivity: bound on the change of u^T C u, one number > 0, units of `matrix`.
        monotone: True where neighbours differ by adding or removing a positive semi-definite term.
        epsilon: pure-DP budget of all draws together. Give this or `rho`.
        rho: zCDP budget of all draws together: each of m draws has epsilon_i = sqrt(8 rho / m).
        live: (d,) booleans, public: False marks a column known to be zero. Only the first draws, one less than the
            live columns, cost anything; what follows spans the other columns.
        what: name of the draws in the ledger.

    Returns:
        `(basis, Seq)`: (d, d) with the directions as columns in the order of the draws, and an entry for each draw.

    Edge cases:
        An invalid budget or sensitivity gives NaN. d = 1: the basis is [[1]] and nothing is spent.

    References:
        Amin, Dick, Kulesza, Munoz, Vassilvitskii (2019); Kent, Ganeiber, Mardia (2018) for the sampler.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import directions
    >>> basis, _ = directions.exponential_directions(
    ...     jax.random.key(0), jnp.diag(jnp.array([900.0, 1.0, 100.0])), sensitivity=1.0, epsilon=2.0, what="axes")
    >>> jnp.abs(basis).round().astype(int).tolist()
    [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    """
    if (epsilon is None) == (rho is None):
        raise TypeError("give exactly one of epsilon and rho")
    unit, total = ("epsilon", epsilon) if rho is None else ("rho", rho)
    d, dtype = matrix.shape[0], matrix.dtype
    if d == 1:
        return jnp.ones_like(matrix), Seq(())
    live = jnp.ones(d, bool) if live is None else live
    free = jnp.sum(live, dtype=dtype) - 1.0
    shares = jnp.where(jnp.arange(d - 1, dtype=dtype) < free, 1.0 / jnp.maximum(free, 1.0), 0.0)
    # A hair less than the shares, so that the float sum of the costs never exceeds the budget.
    costs = shares * (jnp.asarray(total, dtype) * (1.0 - 4.0 * d * float(jnp.finfo(dtype).eps)))
    each = costs if rho is None else jnp.sqrt(8.0 * costs)
    strengths = each / (sensitivity if monotone else 2.0 * sensitivity)
    valid = jnp.all(jnp.isfinite(strengths) & (strengths >= 0)) & jnp.isfinite(total) & (jnp.asarray(total) > 0)

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        key, basis = carry
        i, strength = inputs
        key, key_i = jax.random.split(key)
        values, vectors, active = _complement(matrix, basis, live, i)
        u = vectors @ bingham(key_i, jnp.where(valid, strength, 0.0) * values, active)
        return (key, basis.at[:, i].set(u / jnp.linalg.norm(u))), None

    (_, basis), _ = jax.lax.scan(step, (key, jnp.zeros_like(matrix)), (jnp.arange(d - 1), strengths))
    _, vectors, _ = _complement(matrix, basis, live, d - 1)
    basis = basis.at[:, d - 1].set(vectors[:, d - 1])
    entries = tuple(Entry(f"{what} {i + 1}", "exponential", unit, sensitivity, each[i], costs[i]) for i in range(d - 1))
    return jnp.where(valid, basis, jnp.nan), Seq(entries)


def _complement(matrix: Array, basis: Array, live: Array, drawn: Any) -> tuple[Array, Array, Array]:
    """Eigenvalues and eigenvectors of the matrix on what the first `drawn` columns of `basis` left of the live ones.

    Those come last: drawn directions and columns that are not live are pushed to the front, below every eigenvalue.
    When no live direction is left, the columns that are not live are handed out.
    """
    d = matrix.shape[0]
    dead = jnp.where(live, 0.0, 1.0).astype(matrix.dtype)
    gone = jnp.matmul(basis, basis.T, precision="highest")
    projector = jnp.eye(d, dtype=matrix.dtype) - gone - jnp.diag(dead * (1.0 - jnp.diagonal(gone)))
    below = 1.0 + 2.0 * jnp.linalg.norm(matrix)
    inside = jnp.matmul(jnp.matmul(projector, matrix, precision="highest"), projector, precision="highest")
    shifted = inside - below * (gone + jnp.diag(0.5 * dead))
    values, vectors = jnp.linalg.eigh(0.5 * (shifted + shifted.T))
    # A sign of its own for each eigenvector, or rounding would choose it and with it the draw.
    pivots = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=0, keepdims=True), axis=0)
    first = jnp.minimum(drawn + jnp.sum(~live), d - 1)
    return values, vectors * jnp.where(pivots < 0, -1.0, 1.0).astype(vectors.dtype), jnp.arange(d) >= first


def bingham(key: Any, values: Array, active: Array) -> Array:
    """One draw u on the unit sphere of the active coordinates with density proportional to exp(sum values_j u_j^2).

    Exact rejection from an angular central Gaussian (Kent, Ganeiber, Mardia 2018). With a_j = max(values) - values_j,
    q active coordinates and Omega = 1 + 2a/b: propose y_j ~ N(0, 1/Omega_j), u = y/|y|, of density proportional to
    (u^T Omega u)^(-q/2); accept with probability e^(-t) (1 + 2t/b)^(q/2) e^((q-b)/2) (b/q)^(q/2), t = sum a_j u_j^2.
    That is at most 1 for every b > 0 (its maximum is at t = (q - b)/2), so b decides the speed alone; the best
    solves sum_j 1/(b + 2 a_j) = 1.
    """
    dtype = values.dtype
    q = jnp.sum(active, dtype=dtype)
    a = jnp.where(active, jnp.max(jnp.where(active, values, -jnp.inf)) - values, 0.0)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        above = jnp.sum(jnp.where(active, 1.0 / (middle + 2.0 * a), 0.0)) > 1.0
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    b = jax.lax.fori_loop(0, 40, halve, (jnp.ones_like(q), q))[1]
    omega = 1.0 + 2.0 * a / b
    constant = 0.5 * (q - b) + 0.5 * q * jnp.log(b / q)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, _, _ = state
        key, key_y, key_u = jax.random.split(key, 3)
        y = jnp.where(active, standard_normal(key_y, a.shape, dtype) / jnp.sqrt(omega), 0.0)
        u = y / jnp.linalg.norm(y)
        t = jnp.sum(a * u * u)
        log_acceptance = constant - t + 0.5 * q * jnp.log1p(2.0 * t / b)
        # -|Laplace| has the law of the logarithm of a uniform number, and reaches far.
        accepted = -jnp.abs(standard_laplace(key_u, (), dtype)) <= log_acceptance
        return key, u, accepted | ~jnp.isfinite(log_acceptance)  # never loop on what can never be accepted

    start = (key, jnp.zeros_like(a), jnp.asarray(False))
    return jax.lax.while_loop(lambda state: ~state[2], propose, start)[1]

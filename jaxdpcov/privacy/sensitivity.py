"""Sensitivities of the row sums that mechanisms release: every formula, and nowhere else.

Rows are in frame units z: the unit l2 ball (`domain="ball"`) or the box [-1, 1]^d (`domain="box"`), see
`jaxdpcov.data.clip`. Every number here belongs to a *sum* over rows; a mean over n public rows divides it by n.
Rows that carry weights in [0, 1] obey the same numbers, because a contribution is then a convex combination.
The derivations are in docs/guarantees.md; tests/privacy/test_sensitivity.py attacks each with a search.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

Domain = str  # "ball" | "box"
Relation = str  # "replace" | "add_remove"


class Triangle(NamedTuple):
    """Calibration of Gaussian noise on the upper triangle of a symmetric matrix.

    With s = l2 / sqrt(2 rho), standard deviations `diag * s` on the diagonal and `off * s` off it are rho-zCDP:
    l2 bounds the change of the triangle divided entry by entry by (diag, off).
    """

    l2: Any
    diag: Any
    off: Any


def slack(dtype: Any) -> float:
    """Factor for what rounding leaves of a clipped bound: 1 + 1e-12, or 1 + 1e-5 below float64."""
    return 1.0 + (1e-12 if jnp.finfo(dtype).bits >= 64 else 1e-5)


def mean_l2(domain: Domain, relation: Relation, d: Any) -> Any:
    """l2 sensitivity of sum z: the diameter (replace) or the radius (add/remove) of the domain."""
    radius = jnp.sqrt(d) if domain == "box" else 1.0
    return radius * (2.0 if relation == "replace" else 1.0)


def mean_l1(domain: Domain, relation: Relation, d: Any) -> Any:
    """l1 sensitivity of sum z; sqrt(d) times the l2 form in the ball (Cauchy-Schwarz)."""
    radius = d if domain == "box" else jnp.sqrt(d)
    return radius * (2.0 if relation == "replace" else 1.0)


def second_moment(domain: Domain, relation: Relation, d: Any, noise: str, *, width: int) -> Triangle:
    """Calibration for sum z z^T, `d` live columns out of `width`.

    noise="goe": the tight shape. In the ball, i.i.d. noise on svec, so off = 1/sqrt(2), at the Frobenius
    sensitivity sqrt(2) (1 at width 1). In the box, off = 1 and diag = sqrt(2/(d+1)) at l2 = d, for replace-one.
    noise="sgw": one std on every entry of the triangle, at the Frobenius bound of the papers.
    Add/remove: Frobenius 1 in the ball; i.i.d. at sqrt(d(d+1)/2) on the triangle in the box.
    """
    if domain == "ball":
        frobenius = 1.0 if relation == "add_remove" or width == 1 else math.sqrt(2.0)
        return Triangle(frobenius, 1.0, math.sqrt(0.5) if noise == "goe" else 1.0)
    if relation == "add_remove":
        return Triangle(jnp.sqrt(0.5 * d * (d + 1)), 1.0, 1.0)
    if noise == "goe":
        return Triangle(d, jnp.sqrt(2.0 / (d + 1)), 1.0)
    return Triangle(math.sqrt(2.0) * d, 1.0, 1.0)


def pair_second_moment(domain: Domain, d: Any, noise: str, *, width: int) -> Triangle:
    """Calibration for the sum over pairs of y y^T, y = (z - z')/sqrt(2) with both rows clipped; replace-one only.

    One row sits in one pair and its partner stays, so the ball's Frobenius change is at most 2. In the box
    y / sqrt(2) lies in the unit box again: twice the calibration of single rows.
    """
    if domain == "ball":
        return Triangle(2.0, 1.0, math.sqrt(0.5) if noise == "goe" else 1.0)
    single = second_moment(domain, "replace", d, noise, width=width)
    return single._replace(l2=2.0 * single.l2)


def second_moment_l1(domain: Domain, relation: Relation, d: Any, *, width: int) -> Any:
    """l1 sensitivity of the upper triangle (diagonal included) of sum z z^T."""
    if domain == "box":
        return 0.5 * d * (d + 1)  # for both relations: see docs/guarantees.md
    if relation == "add_remove":
        return 0.5 * (d + 1)  # (||z||_1^2 + ||z||_2^2) / 2
    if width == 1:
        return 1.0
    return jnp.minimum(d / math.sqrt(2.0) + 1.0, jnp.sqrt(0.5 * d * (d + 3)))


def pair_second_moment_l1(domain: Domain, d: Any, *, width: int) -> Any:
    """l1 sensitivity of the triangle of the sum over pairs: half the full matrix's l1 plus half the diagonal's."""
    if domain == "box":
        return d * (d + 1)
    return d + 0.5 * pair_diagonal_l1(domain, d, width=width) if width > 1 else 2.0


def diagonal_l2(domain: Domain, relation: Relation, d: Any, *, width: int) -> Any:
    """l2 sensitivity of diag(sum z z^T)."""
    if domain == "box":
        return jnp.sqrt(d)
    return 1.0 if relation == "add_remove" or width == 1 else math.sqrt(2.0)


def diagonal_l1(domain: Domain, relation: Relation, d: Any, *, width: int) -> Any:
    """l1 sensitivity of diag(sum z z^T)."""
    if domain == "box":
        return d
    return 1.0 if relation == "add_remove" or width == 1 else 2.0


def pair_diagonal_l2(domain: Domain, d: Any, *, width: int) -> Any:
    """l2 sensitivity of the diagonal of the sum over pairs: at most the Frobenius one in the ball."""
    return 2.0 * jnp.sqrt(d) if domain == "box" else 2.0


def pair_diagonal_l1(domain: Domain, d: Any, *, width: int) -> Any:
    """l1 sensitivity of the diagonal of the sum over pairs; 3 sqrt(3)/2 in the ball from two columns on."""
    if domain == "box":
        return 2.0 * d
    return 2.0 if width == 1 else 1.5 * math.sqrt(3.0)


def box_entry(relation: Relation, *, diagonal: bool, paired: bool = False) -> float:
    """Sensitivity of one entry of sum z z^T over rows in the box: z_j z_k lies in [-1, 1], z_j^2 in [0, 1].

    Of a pair, half the product of two differences moves by at most 2 when one of its rows is replaced.
    """
    if paired:
        return 2.0
    return 1.0 if diagonal or relation == "add_remove" else 2.0


# Rows clipped at a radius within the unit ball, and divided by it: w = clip(u, radius) / radius. With pairs, u is half
# the difference of two rows, so that one replaced row moves one u within a ball of radius 1/2.


def clipped_frobenius(relation: Relation, radius: Any, *, width: int, paired: bool = False) -> Any:
    """Frobenius sensitivity of sum w w^T, and l2 sensitivity of its sorted eigenvalues (Hoffman and Wielandt).

    For pairs at radius 1 it is 1, half of `pair_second_moment`; clipping at a radius projects u u^T onto a Frobenius
    ball, which is a contraction, so that 1 in units of u bounds every radius: 1/radius^2 in units of w.
    """
    if relation == "add_remove" or width == 1:
        return 1.0
    single = math.sqrt(2.0)
    return jnp.minimum(single, 1.0 / (radius * radius)) if paired else single


def clipped_off_diagonal(relation: Relation, radius: Any, *, width: int, paired: bool = False) -> tuple[Any, Any]:
    """Sensitivity, over sum w w^T, of the l2 norm of the entries above the diagonal, and of the top eigenvalue of the
    part off the diagonal: that part moves by no more than the whole in Frobenius norm, and its two halves are equal.
    """
    whole = clipped_frobenius(relation, radius, width=width, paired=paired)
    return math.sqrt(0.5) * whole, whole


def clipped_second_moment(relation: Relation, radius: Any, noise: str, *, width: int, paired: bool = False) -> Triangle:
    """Calibration for sum w w^T: "goe" (off = 1/sqrt(2)) or "sgw" (one std), at the Frobenius sensitivity."""
    off = math.sqrt(0.5) if noise == "goe" else 1.0
    return Triangle(clipped_frobenius(relation, radius, width=width, paired=paired), 1.0, off)


def clipped_second_moment_l1(relation: Relation, radius: Any, d: Any, *, width: int, paired: bool = False) -> Any:
    """l1 sensitivity of the upper triangle of sum w w^T: of `second_moment_l1`, at the Frobenius one for pairs."""
    if not paired or width == 1:
        return second_moment_l1("ball", relation, d, width=width)
    frobenius = clipped_frobenius(relation, radius, width=width, paired=True)
    return jnp.minimum(0.5 * d * frobenius + 1.0, jnp.sqrt(0.25 * d * (d + 3)) * frobenius)


def clipped_spectrum_l1(relation: Relation, radius: Any, *, width: int, paired: bool = False) -> Any:
    """l1 sensitivity of the sorted eigenvalues of sum w w^T: the nuclear norm of the change, of rank two at most."""
    if relation == "add_remove" or width == 1:
        return 1.0
    return math.sqrt(2.0) * clipped_frobenius(relation, radius, width=width, paired=paired)


def squared_norm() -> float:
    """Sensitivity of sum |u|^2 in the unit ball, for every relation and for pairs: |u|^2 lies in [0, 1]."""
    return 1.0


def direction() -> float:
    """Sensitivity of v^T (sum u u^T) v for a unit v in the unit ball, for every relation and for pairs.

    One row's (v.u)^2 lies in [0, 1]. All scores grow together when a row is added.
    """
    return 1.0


def level_query() -> float:
    """Sensitivity of the clipped mass at a radius q = 2^k <= 1 and of its bound from level counts, for every relation.

    A row adds max(0, |u|^2 - q^2), or 4^(s+1) - q^2 for its level s >= k, s capped at -1: a number in [0, 1 - q^2].
    """
    return 1.0


def radius_score(weight: float) -> float:
    """Sensitivity of (weight / 2) sum of min(|u|^2, q^2) - max(0, |u|^2 - q^2), for every relation.

    A row adds weight/2 times a number between min(0, 2 q^2 - 1) and q^2: within [-1, 1], and a range of at most 1.
    """
    return 0.5 * weight


def histogram_l2(relation: Relation, columns: Any) -> Any:
    """l2 sensitivity of one histogram for each of `columns` columns: a replaced row moves one count down, one up."""
    return jnp.sqrt((2.0 if relation == "replace" else 1.0) * columns)


def histogram_l1(relation: Relation, columns: Any) -> Any:
    """l1 sensitivity of one histogram for each of `columns` columns."""
    return (2.0 if relation == "replace" else 1.0) * columns


# Rows of non-negative entries: u in [0, 1]^d, each coordinate times its public weight, scaled down to a norm.


def truncated_sum(radius: Any, reach: Any) -> Any:
    """l2 sensitivity, replace-one, of a sum of rows y with 0 <= y_j <= a_j and |y| <= radius; `reach` is |a|.

    Two such rows have no negative inner product, so they differ by at most sqrt(2) radius; and by at most a.
    """
    return jnp.minimum(math.sqrt(2.0) * radius, reach)


def lost_share(most: Any) -> Any:
    """Sensitivity of a sum over rows of w max(0, 1 - radius/|y|), w in [0, most], for every relation."""
    return most

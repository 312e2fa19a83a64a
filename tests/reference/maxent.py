"""Maximum-entropy reconstruction in slow plain NumPy: every formula from its definition, edge by edge.

The problem: a set E of unordered pairs of coordinates is measured, each pair once and every coordinate with
itself; measurement e reads y_e with precision lam_e. Wanted is the minimiser over positive definite W of

    F(W) = t sum_E lam_e (W_e - y_e)^2 - log det W.

Derivation of the dual. For any number s_e, t lam r^2 >= s_e r - s_e^2 / (4 t lam) (a square is not negative), so
with c_e = 1 on the diagonal and 2 off it and s_e = c_e K_e for a symmetric K supported on E,

    F(W) >= <K, W> - log det W - sum_E c_e K_e y_e - sum_E c_e^2 K_e^2 / (4 t lam_e),

because sum_E c_e K_e W_e is the trace inner product <K, W>. Over W > 0 the right side is least at W = K^-1 when
K > 0 (else it is unbounded), where it is d - g(K) with

    g(K) = -log det K + sum_E c_e K_e y_e + sum_E c_e^2 K_e^2 / (4 t lam_e).

So F(W) - (d - g(K)) >= 0 for all feasible W, K: the duality gap, zero exactly at the two optima.
"""

import numpy as np


def edges(mask):
    """The measured pairs (j, k), j <= k, each once."""
    d = len(mask)
    return [(j, k) for j in range(d) for k in range(j, d) if mask[j, k]]


def objective(w, y, lam, mask, t):
    """F_t(W) by a loop over the measured pairs."""
    squares = sum(lam[e] * (w[e] - y[e]) ** 2 for e in edges(mask))
    return t * squares - np.linalg.slogdet(w)[1]


def dual_objective(k, y, lam, mask, t):
    """g(K) by a loop over the measured pairs."""
    value = -np.linalg.slogdet(k)[1]
    for e in edges(mask):
        c = 1.0 if e[0] == e[1] else 2.0
        value += c * k[e] * y[e] + (c * k[e]) ** 2 / (4 * t * lam[e])
    return value


def gap(w, k, y, lam, mask, t):
    """The duality gap of any positive definite W and any positive definite K supported on E: by definition."""
    return objective(w, y, lam, mask, t) + dual_objective(k, y, lam, mask, t) - len(w)


def kkt_residual(w, y, lam, mask, t):
    """W^-1 minus what stationarity of F demands: (1 or 2 for the diagonal) t lam (W - y) on E, and 0 elsewhere."""
    residual = np.linalg.inv(w)
    for j, k in edges(mask):
        pull = t * lam[j, k] * (w[j, k] - y[j, k])
        if j == k:
            residual[j, j] -= 2 * pull
        else:
            residual[j, k] -= pull
            residual[k, j] -= pull
    return residual


def _unit(d, e):
    """The symmetric matrix that moves both copies of one pair."""
    b = np.zeros((d, d))
    b[e] = 1.0
    b[e[::-1]] = 1.0
    return b


def _gradient_and_hessian(k, y, lam, mask, t):
    """Derivatives of g in the independent numbers K_e: an explicit |E| x |E| system, entry by entry."""
    d, w, pairs = len(k), np.linalg.inv(k), edges(mask)
    gradient, hessian = np.empty(len(pairs)), np.empty((len(pairs), len(pairs)))
    for a, e in enumerate(pairs):
        c = 1.0 if e[0] == e[1] else 2.0
        gradient[a] = c * (y[e] - w[e]) + c**2 * k[e] / (2 * t * lam[e])
        turned = w @ _unit(d, e) @ w  # minus the derivative of W along this pair
        for b, f in enumerate(pairs):
            hessian[a, b] = (1.0 if f[0] == f[1] else 2.0) * turned[f]
        hessian[a, a] += c**2 / (2 * t * lam[e])
    return gradient, hessian


def solve(y, lam, mask, t, steps=200, tol=1e-20):
    """The optimal (W, K) by exact damped Newton steps on g, damping 1/(1 + decrement): slow and sure.

    g is self-concordant (a log det and a quadratic), so the damping keeps K positive definite and descends.
    """
    y, lam = np.asarray(y, float), np.asarray(lam, float)
    d, pairs = len(y), edges(mask)
    k = np.zeros((d, d))
    for j in range(d):
        k[j, j] = 1 / isolated(y[j, j], lam[j, j], t)
    for _ in range(steps):
        gradient, hessian = _gradient_and_hessian(k, y, lam, mask, t)
        step = -np.linalg.solve(hessian, gradient)
        decrement = np.sqrt(max(-gradient @ step, 0.0))
        scale = 1.0 if decrement < 0.1 else 1 / (1 + decrement)
        for e, change in zip(pairs, scale * step):
            k[e] += change
            k[e[::-1]] = k[e]
        if decrement**2 < tol:
            break
    return np.linalg.inv(k), k


def tangent(w, k, y, lam, mask, t, dy, dlam, dt):
    """The change of the optimal (W, K) with the measurements, from the explicit derivative of gradient g = 0."""
    d = len(w)
    _, hessian = _gradient_and_hessian(k, y, lam, mask, t)
    moved = np.empty(len(hessian))
    for a, e in enumerate(edges(mask)):
        c = 1.0 if e[0] == e[1] else 2.0
        moved[a] = c * dy[e] - c**2 * k[e] / (2 * t * lam[e]) * (dlam[e] / lam[e] + dt / t)
    change = -np.linalg.solve(hessian, moved)
    dk = np.zeros((d, d))
    for e, value in zip(edges(mask), change):
        dk[e] = dk[e[::-1]] = value
    return -w @ dk @ w, dk


def isolated(y, lam, t):
    """The variance of a coordinate that is measured with itself only: the positive root of 2 t lam W (W - y) = 1."""
    root = np.sqrt(y**2 + 2 / (t * lam))
    return np.where(y > 0, (y + root) / 2, 1 / (t * lam * (root - np.minimum(y, 0.0))))


def full_goe(y, lam_diagonal, t):
    """W when every entry is measured, off-diagonals with twice the precision of the diagonal: then the weighted
    sum is lam_diagonal ||W - y||_F^2, all is invariant under rotations, and W shares the eigenvectors of y."""
    mu, u = np.linalg.eigh(y)
    return (u * isolated(mu, lam_diagonal, t)) @ u.T


def chordal_precision(y, cliques, separators):
    """K at t -> infinity on a chordal graph with feasible y: sum of padded clique inverses minus separators."""
    k = np.zeros_like(y)
    for sign, groups in ((1.0, cliques), (-1.0, separators)):
        for group in groups:
            if group:
                at = np.ix_(group, group)
                k[at] += sign * np.linalg.inv(y[at])
    return k

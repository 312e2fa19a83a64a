"""Floors: what a release cannot do without (passes over rows, factorisations, noise draws), bare and compiled.

A floor shares no mechanism's code, except for the draws of `privacy.noise`, whose tails a release needs. Every bare
program ends in one number for each repetition, as a study's does.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.privacy import noise

#: Numbers in one slice of rows: what stays in a core's cache together with its products.
BLOCK = 400_000


class Needs(NamedTuple):
    """What one release needs. `passes` are names of `PASSES`; the others count per release, d by d each.

    eighs: eigendecompositions. spectra: eigenvalues alone. triangles: noise on a triangle, d (d+1) / 2 draws.
    vectors: noise on d numbers. deflated: eigendecompositions at sizes d, d-1, ..., 2, one each. once: of the spectra,
    those of the rows alone, which many releases of the same rows share.
    """

    passes: tuple[str, ...] = ("second",)
    eighs: int = 0
    spectra: int = 0
    triangles: int = 1
    vectors: int = 1
    deflated: int = 0
    once: int = 0


#: Each mechanism in its default form (center="private", or pairs of rows under spectrum bounds, here of neighbours: the
#: random order that a mechanism pairs them in is no part of the floor). A release of the
#: separate form needs the spectrum of the exact second moment, the eigenvectors of the noisy one, and the eigenvalues
#: of what is left when the mean is taken off it.
NEEDS = {
    "gaussian": Needs(eighs=1),
    "laplace": Needs(eighs=1),
    "diagonal": Needs(passes=("squares",), triangles=0, vectors=2),
    "separate": Needs(eighs=2, once=1, vectors=2),
    "clipped_gaussian": Needs(eighs=1),
    "clipped_separate": Needs(eighs=2, once=1, vectors=2),
    "adaptive": Needs(passes=("norms", "second"), eighs=2, spectra=1, vectors=2),
    "emcov": Needs(deflated=1, spectra=1, triangles=0, vectors=2),
    "coinpress_covariance": Needs(passes=("pairs",) * 3, eighs=1, triangles=3, vectors=0),
    "coinpress_mean": Needs(passes=("first",), triangles=0),
    "naive_pce": Needs(passes=("pairs",), eighs=1, vectors=0),
    "product_mean": Needs(passes=("first", "norms", "first"), triangles=0, vectors=2),
}


def _clipped(x: jax.Array) -> jax.Array:
    return x * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True)))


def _norms(x: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.sum(x * x)


def _first(x: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.sum(_clipped(x), axis=0)


def _squares(x: jax.Array, a: jax.Array) -> jax.Array:
    clipped = _clipped(x)
    return jnp.sum(clipped * clipped, axis=0)


def _second(x: jax.Array, a: jax.Array) -> jax.Array:
    clipped = _clipped(x)
    return jnp.matmul(clipped.T, clipped, precision="highest")


def _mapped(x: jax.Array, a: jax.Array) -> jax.Array:
    return _second(jnp.matmul(x, a.T, precision="highest"), a)


def _pairs(x: jax.Array, a: jax.Array) -> jax.Array:
    even = len(x) // 2 * 2
    return _mapped((x[:even:2] - x[1:even:2]) * 0.5**0.5, a)


#: One pass over a slice of rows (m, d), with a map (d, d) that "mapped" and "pairs" use.
PASSES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "norms": _norms,
    "first": _first,
    "squares": _squares,
    "second": _second,
    "mapped": _mapped,
    "pairs": _pairs,
}


@functools.partial(jax.jit, static_argnums=0)
def one_pass(name: str, x: jax.Array, a: jax.Array) -> jax.Array:
    """The sum of a pass over rows x (n, d), in slices that stay in cache."""
    f, (n, d) = PASSES[name], x.shape
    size = min(n, max(64, BLOCK // d))

    def at(i: Any, total: jax.Array) -> jax.Array:
        return total + f(jax.lax.dynamic_slice(x, (i * size, 0), (size, d)), a)

    total = jax.lax.fori_loop(1, n // size, at, f(x[:size], a))
    return total if n % size == 0 else total + f(x[n // size * size :], a)


def one_release(needs: Needs, key: jax.Array, matrix: jax.Array) -> jax.Array:
    """The draws of one release and its factorisations of a noisy (d, d) matrix, summed up to one number."""
    d, total = matrix.shape[0], jnp.zeros((), matrix.dtype)
    draws = needs.triangles * (d * (d + 1) // 2) + needs.vectors * d
    if draws:
        total += jnp.sum(noise.standard_normal(key, (draws,), matrix.dtype))
    sizes = [d] * needs.eighs + [size for _ in range(needs.deflated) for size in range(d, 1, -1)]
    # Each is of a matrix moved by what came before: XLA makes equal factorisations once, barrier or not; and on a CPU
    # two batches of them at once may hold each other's threads.
    for size in sizes:
        values, vectors = jnp.linalg.eigh(matrix[:size, :size] + 1e-30 * total)
        total += values[0] + vectors[0, 0]
    for _ in range(needs.spectra):
        total += jnp.linalg.eigvalsh(matrix + 1e-30 * total)[0]
    return total


def work(needs: Needs, d: int, repetitions: int, batch: int) -> Callable[[], jax.Array]:
    """A compiled program of the factorisations and draws of many releases; `repetitions` numbers come out.

    The matrices, 20 different ones, are made beforehand: making them is not in the time.
    """
    g = np.random.default_rng(0)
    noisy = 0.05 * g.normal(size=(20, d, d))
    matrices = jnp.asarray(noisy + np.swapaxes(noisy, 1, 2) + np.diag(np.linspace(1.0, 2.0, d)))
    keys, index = jax.random.split(jax.random.key(0), repetitions), jnp.arange(repetitions) % 20

    def program(keys: jax.Array, index: jax.Array, matrices: jax.Array) -> jax.Array:
        if repetitions == 1:
            return one_release(needs, keys[0], matrices[0])[None]

        def one(of: tuple[jax.Array, jax.Array]) -> jax.Array:
            return one_release(needs, of[0], matrices[of[1]])

        return jax.lax.map(one, (keys, index), batch_size=min(batch, repetitions))

    compiled = jax.jit(program).lower(keys, index, matrices).compile()
    return lambda: compiled(keys, index, matrices)


def release(needs: Needs, x: jax.Array, repetitions: int = 1, batch: int = 20) -> Callable[[], Any]:
    """The floor of `repetitions` releases of rows x (n, d): each pass once, the rest as often as there are releases."""
    d = x.shape[1]
    a = jnp.eye(d, dtype=x.dtype) + jnp.full((d, d), 0.01, x.dtype)
    each = work(needs, d, repetitions, batch)
    shared = work(Needs(spectra=needs.once, triangles=0, vectors=0), d, 1, 1) if needs.once else None

    def run() -> list[Any]:
        sums = [one_pass(name, x, a) for name in needs.passes]
        return [*sums, each(), shared() if shared else 0]

    return run

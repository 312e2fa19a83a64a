"""Repetitions of one mechanism in one compiled program, in calls of one size that any number of devices can share."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.data.rows import ArrayRows, Rows
from jaxdpcov.mechanisms._registry import MECHANISMS
from jaxdpcov.sim import moments
from jaxdpcov.sim.laws import Population

Array = jax.Array

#: The arm that adds no noise and does not clip: the moment of the rows themselves.
NOT_PRIVATE = "not_private"
#: Mechanisms that a table of level moments serves: on one data set their passes over the rows are made once.
_BY_LEVEL = ("separate", "adaptive", "auto", "emcov")
#: What `keep` may name besides the metrics: fields of a release.
KEEPS = ("covariance", "mean", "n", "diagnostics", "extra", "measured")
#: Repetitions of one call, about: a pass over the rows that all share is made once for so many of them.
_CALL = 128
#: Matrices of d x d that a lane holds at once, generously; most lanes of a batch, where memory has no end of room.
_MATRICES, _MOST, _MOST_CPU = 40, 1024, 16


@dataclasses.dataclass(frozen=True)
class Task:
    """What one compiled program repeats: everything that shapes it and is no number.

    method: a mechanism, or `NOT_PRIVATE`. n: rows that each repetition draws anew; 0 where all share one data set.
    metrics: pairs of a name and a function (estimate, `Truth`) -> (). moment, truth, keep: as in `Study`.
    """

    method: str
    n: int
    metrics: tuple[tuple[str, Callable[..., Any]], ...]
    moment: str
    truth: str
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_method(self.method)
        _checks.choice("moment", self.moment, moments.MOMENTS)
        _checks.choice("truth", self.truth, ("population", "sample"))
        for name in self.keep:
            _checks.choice("keep", name, KEEPS)


def center(bounds: Any, d: int, dtype: Any) -> Array:
    """(d,) the public centre of bounds, about which second moments are taken."""
    if isinstance(bounds, BoxBounds):
        value = 0.5 * jnp.asarray(bounds.lower, dtype) + 0.5 * jnp.asarray(bounds.upper, dtype)
    else:
        given = bounds.center if isinstance(bounds, L2Bounds) else bounds.mean_center
        value = jnp.asarray(0.0 if given is None else given, dtype)
    if value.shape not in ((), (1,), (d,)):
        raise ValueError(f"bounds must have one entry for each of the {d} columns, got shape {value.shape}")
    return jnp.broadcast_to(value, (d,))


def by_level(task: Task, bounds: Any, config: Any) -> bool:
    """Whether a table of level moments serves a mechanism in place of rows that all repetitions share."""
    ball = not isinstance(bounds, SpectrumBounds)
    return ball and task.method in _BY_LEVEL and getattr(config, "center", None) != "pairs"


def home(rows: Array, bounds: Any, table: bool) -> Any:
    """One data set in the form that asks least of every repetition."""
    return Rows.array(rows).level_moments(bounds) if table else rows


def batch_size(n: int, d: int, repetitions: int, device: Any = None) -> int:
    """Lanes of a batch: a power of two from 2 on whose arrays fill at most a quarter of the memory that is free.

    At most 16 on a CPU, where more gain nothing, and `_MOST` on an accelerator.

    Args:
        n: rows that each lane draws, 0 where all share one data set. d: columns.
        repetitions: no more lanes than these need.
    """
    device = jax.devices()[0] if device is None else device
    lane = jnp.zeros(()).dtype.itemsize * (4.0 * n * d + _MATRICES * d * d)
    most = min(_MOST_CPU if device.platform == "cpu" else _MOST, repetitions, 0.25 * _free_bytes(device) / lane)
    return 1 << max(1, int(np.log2(max(most, 2.0))))


def _free_bytes(device: Any) -> float:
    """Memory that is free on an accelerator, or on the host; 4 GiB where nothing tells."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    with contextlib.suppress(OSError, StopIteration):  # Linux: what could be given to a process
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return 2.0**32


def call_size(repetitions: int, batch: int) -> int:
    """Repetitions of one call: whole batches, the same for all calls, so that each lane is computed alike in all."""
    return batch * max(1, -(-min(repetitions, _CALL) // batch))


class Program:
    """The repetitions of a task at one budget and on one population or data set, ready to be called with keys.

    What a config leaves open is chosen here, on the host. All numbers are traced then: programs of one shape share what
    is compiled, whatever the budget is.
    """

    def __init__(self, task: Task, data: Any, truth: Any, budget: Any, bounds: Any, config: Any, batch: int) -> None:
        settle = None if task.method == NOT_PRIVATE else MECHANISMS[task.method].settle
        if settle is not None:
            shape = (task.n, data.d) if task.n else data.shape
            config = settle(ArrayRows(np.broadcast_to(np.zeros(()), shape)), budget, bounds, config)
        self._run, self.batch = functools.partial(_compiled, task=task, batch=batch), batch
        self._arguments = (data, truth, (budget, bounds, config))
        self._placed: dict[Any, Any] = {}

    def __call__(self, keys: Array, device: Any) -> Any:
        """Errors (r, metrics), status (r,) and what is kept, of keys (r,), computed on `device`."""
        if device not in self._placed:
            self._placed[device] = jax.device_put(self._arguments, device)
        return self._run(jax.device_put(keys, device), *self._placed[device])


@functools.partial(jax.jit, static_argnames=("task", "batch"))
def _compiled(keys: Array, data: Any, truth: Any, public: Any, *, task: Task, batch: int) -> Any:
    def one(key: Array) -> Any:
        return _repetition(key, data, truth, public, task)

    return jax.lax.map(one, keys, batch_size=None if batch == 1 else batch)


def _repetition(key: Array, data: Any, truth: Any, public: Any, task: Task) -> Any:
    budget, bounds, config = public
    key_data, key_noise = jax.random.split(key)
    rows = data.sample(key_data, task.n) if task.n else data
    about = center(bounds, rows.d if isinstance(rows, Rows) else rows.shape[1], rows.dtype)
    if task.truth == "sample" and task.n:
        covariance = moments.sample_moment(rows, "covariance", about)
        moment = covariance if task.moment == "covariance" else moments.sample_moment(rows, task.moment, about)
        truth = moments.Truth(moment, covariance)
    if task.method == NOT_PRIVATE:
        estimate = moments.sample_moment(rows, task.moment, about)
        bits, kept = jnp.zeros((), jnp.int32), {}
    else:
        release = MECHANISMS[task.method].function(key_noise, rows, budget, bounds, config=config)
        estimate = release.mean if task.moment == "mean" else release.covariance
        if estimate is None:
            raise ValueError(f"{task.method} releases no {'mean' if task.moment == 'mean' else 'covariance'} as asked")
        bits, kept = release.status, {name: getattr(release, name) for name in task.keep}
    errors = jnp.stack([jnp.asarray(metric(estimate, truth)) for _, metric in task.metrics])
    return errors, bits, kept


def true_moment(data: Any, task: Task, bounds: Any) -> moments.Truth | None:
    """The truth that repetitions share, of the population or the one data set (n, d); None where each has its own."""
    if task.truth == "population":
        if not isinstance(data, Population):
            raise ValueError("truth='population' needs a population; rows have truth='sample'")
        dtype = jnp.zeros(()).dtype
        mean, covariance = jnp.asarray(data.mean, dtype), jnp.asarray(data.covariance, dtype)
        about = center(bounds, data.d, dtype)
        return moments.Truth(moments.population_moment(mean, covariance, task.moment, about), covariance)
    if task.n:
        return None
    rows = jnp.asarray(data)
    about = center(bounds, rows.shape[1], rows.dtype)
    return moments.Truth(*(moments.sample_moment(rows, what, about) for what in (task.moment, "covariance")))


def keys(key: Array, repetitions: int) -> Array:
    """(r,) the key of each repetition, which does not depend on how many there are."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(repetitions))


def calls(
    program: Program, keys: Array, size: int, devices: Any, done: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Any]]]:
    """Results of repetitions done..len(keys) in calls of `size`: (errors, status, kept).

    Each device holds one call at a time; which of them makes a call changes nothing in it. On CPUs calls of batches run
    one after another on the first device: batched factorisations of programs that run at once wait for each other's
    threads, for good (four devices on two cores: every run hangs). With a batch size of 1 they do not.
    """
    if devices[0].platform == "cpu" and program.batch > 1:
        devices = devices[:1]
    starts = list(range(done, keys.shape[0], size))
    for first in range(0, len(starts), len(devices)):
        group = starts[first : first + len(devices)]
        found = []
        for start, device in zip(group, devices):
            wanted = np.minimum(np.arange(start, start + size), keys.shape[0] - 1)  # the last call is filled up
            found.append(program(keys[wanted], device))
        for start, result in zip(group, found):
            count = min(size, keys.shape[0] - start)
            errors, bits, kept = jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:count], result)
            yield errors, bits, kept


def check_method(method: str) -> None:
    """ValueError that names the closest one, unless `method` is a mechanism or `NOT_PRIVATE`."""
    if method not in MECHANISMS and method != NOT_PRIVATE:
        hint = _checks.hint(method, [*MECHANISMS, NOT_PRIVATE])
        raise ValueError(f"method must be one of {', '.join([*MECHANISMS, NOT_PRIVATE])}; got {method!r}{hint}")


def check_key(seed: Any) -> Array:
    """The key of a study from its seed."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a whole number of at most 64 bits, got {seed!r}")
    return _checks.typed_key(jax.random.key(int(seed)))

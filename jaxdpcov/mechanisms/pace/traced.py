"""All rounds of PACE as one program, for `jit`, `vmap` and studies of many repetitions."""

import jax

from jaxdpcov import maxent
from jaxdpcov.maxent.linear import lane_by_lane
from jaxdpcov.mechanisms.pace.state import Known, Log, Private, Schedule
from jaxdpcov.mechanisms.pace.step import absorb, choose_and_measure, going, tolerance


@jax.jit
def follow(key: jax.Array, private: Private, known: Known, log: Log, schedule: Schedule) -> tuple[Known, Log]:
    """Rounds until the budget is spent; repetitions under `vmap` need not wait for each other on a CPU."""
    return lane_by_lane(_follow, key, private, known, log, schedule)


def _follow(key: jax.Array, private: Private, known: Known, log: Log, schedule: Schedule) -> tuple[Known, Log]:
    """Each round reconstructs the whole matrix from where it stood."""

    def advance(state: tuple[Known, Log]) -> tuple[Known, Log]:
        known, log, chosen = choose_and_measure(key, private, *state, schedule)
        y, lam = known.measurements(private)
        solver = maxent.MaxentConfig(tol=tolerance(y.dtype), preconditioner="diagonal")
        found = maxent.fit(y, lam, known.mask, t=private.t, init=known.precision, config=solver)
        return absorb(known, log, chosen, found.covariance, found.precision, schedule), log

    return jax.lax.while_loop(lambda state: going(*state), advance, (known, log))

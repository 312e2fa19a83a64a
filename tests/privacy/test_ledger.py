"""The ledger adds up under every transformation, prints, and exports what dp-accounting then agrees with."""

import builtins
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov.privacy.accounting import epsilon_of_rho, gaussian_epsilon
from jaxdpcov.privacy.budget import split
from jaxdpcov.privacy.ledger import Entry, Par, Remark, Rounds, Seq, entries, rows, to_dp_event, total


def gaussian(rho: float, sensitivity: float = 3.0, what: str = "sum") -> Entry:
    return Entry(what, "gaussian", "rho", sensitivity, sensitivity / (2.0 * rho) ** 0.5, rho)


def laplace(epsilon: float, sensitivity: float = 3.0, what: str = "count") -> Entry:
    return Entry(what, "laplace", "epsilon", sensitivity, sensitivity / epsilon, epsilon)


def selection(epsilon: float, kind: str = "exponential", unit: str = "epsilon", what: str = "pair") -> Entry:
    price = epsilon**2 / (8.0 if kind == "exponential" else 2.0)
    return Entry(what, kind, unit, 1.0, epsilon, epsilon if unit == "epsilon" else price)


TREE = Seq(
    (gaussian(0.1), Par((gaussian(0.3), Seq((laplace(0.2), selection(0.4))))), selection(2.0, "above_threshold"))
)


# -- totals ------------------------------------------------------------------------------------------------------


def test_prices_in_zcdp() -> None:
    assert total(gaussian(0.3), "rho") == 0.3
    assert total(laplace(2.0), "rho") == 2.0
    assert total(selection(2.0), "rho") == 0.5
    assert total(selection(2.0, "above_threshold"), "rho") == 2.0
    assert total(selection(2.0, unit="rho"), "rho") == 0.5
    assert total(TREE, "rho") == pytest.approx(0.1 + 0.3 + 2.0)


def test_prices_in_pure_dp() -> None:
    pure = Seq((laplace(0.2), Par((selection(0.5), laplace(0.3))), selection(1.0, "above_threshold", unit="rho")))
    assert total(pure, "epsilon") == pytest.approx(1.7)
    with pytest.raises(ValueError, match="needs pure DP throughout, and 'sum' is gaussian"):
        total(TREE, "epsilon")


def test_units_and_kinds_are_checked() -> None:
    with pytest.raises(ValueError, match="^unit must be one of"):
        total(TREE, "delta")
    with pytest.raises(ValueError, match="^kind must be one of"):
        total(Entry("x", "uniform", "rho", 1.0, 1.0, 1.0), "rho")


def test_nothing_costs_nothing() -> None:
    assert total(Seq(()), "rho") == 0.0 and total(Par(()), "epsilon") == 0.0 and entries(Seq(())) == ()


def test_a_failed_block_is_not_hidden() -> None:
    failed = gaussian(math.nan)
    for children in ((failed, gaussian(0.1)), (gaussian(0.1), failed)):
        assert math.isnan(total(Par(children), "rho"))
        assert math.isnan(total(Seq(children), "rho"))
        assert jnp.isnan(jax.jit(total, static_argnums=1)(Par(children), "rho"))


def test_entries_in_order() -> None:
    assert [entry.kind for entry in entries(TREE)] == [
        "gaussian",
        "gaussian",
        "laplace",
        "exponential",
        "above_threshold",
    ]


def build(rho: jax.Array) -> tuple[Seq, jax.Array]:
    first, second, third = split(rho, (0.2, 0.3, 0.5))
    tree = Seq((gaussian(first), Par((gaussian(second), gaussian(0.5 * second))), gaussian(third)))
    return tree, total(tree, "rho")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_ledgers_through_jit_and_vmap_stay_within_the_budget(dtype: jnp.dtype) -> None:
    rhos = jnp.asarray(10.0 ** np.random.default_rng(0).uniform(-8, 8, 4000), dtype)
    tree, inside = jax.jit(jax.vmap(build))(rhos)
    assert isinstance(tree, Seq) and isinstance(tree.children[1], Par) and tree.children[0].what == "sum"
    outside = total(tree, "rho")
    assert inside.dtype == outside.dtype == dtype
    assert np.all(inside <= rhos) and np.all(outside <= rhos)
    assert np.all(outside >= rhos * (1.0 - 20.0 * jnp.finfo(dtype).eps))
    alone, alone_total = jax.jit(build)(rhos[7])
    np.testing.assert_allclose(alone_total, inside[7], rtol=4 * jnp.finfo(dtype).eps)
    assert total(alone, "rho") <= rhos[7]


def test_totals_have_gradients() -> None:
    assert jax.grad(lambda rho: build(rho)[1])(0.7) == pytest.approx(1.0, rel=1e-12)


# -- the table ---------------------------------------------------------------------------------------------------


def test_rows_of_a_tree() -> None:
    table = rows(TREE)
    assert [row["what"] for row in table] == [
        "sum",
        "2 disjoint row blocks, the dearest counts",
        "block 1: sum",
        "block 2: count",
        "block 2: pair",
        "pair",
    ]
    assert table[0] == {"what": "sum", "kind": "gaussian", "sensitivity": 3.0, "scale": 3.0 / 0.2**0.5, "rho": 0.1}
    assert table[1] == {"what": table[1]["what"], "kind": "parallel", "rho": 0.3}
    assert table[3]["epsilon"] == 0.2 and "rho" not in table[3]
    assert json.loads(json.dumps(table)) == table


def test_rows_of_a_pure_tree_are_in_epsilon() -> None:
    assert rows(Par((laplace(0.2), laplace(0.3))))[0]["epsilon"] == 0.3


def test_rows_take_arrays_of_one_number() -> None:
    table = rows(jax.jit(lambda tree: tree)(TREE))
    assert all(type(value) in (str, float) for row in table for value in row.values())


@pytest.mark.parametrize("function", [rows, to_dp_event])
def test_traced_and_batched_ledgers_say_what_to_do(function) -> None:
    with pytest.raises(TypeError, match=f"^{function.__name__} needs concrete numbers.*traced.*outside jit"):
        jax.jit(lambda tree: function(tree))(TREE)
    batched = jax.vmap(lambda rho: build(rho)[0])(jnp.array([0.1, 0.2]))
    with pytest.raises(ValueError, match=rf"^{function.__name__} needs the ledger of one release.*\(2,\)"):
        function(batched)
    function(jax.tree.map(lambda leaf: leaf[0], batched))


# -- the export --------------------------------------------------------------------------------------------------


def rdp_epsilon(event, delta: float) -> float:
    from dp_accounting import rdp

    orders = (1.0 + np.geomspace(0.02, 1e3, 10_001)).tolist()
    return rdp.RdpAccountant(orders).compose(event).get_epsilon(delta)


def pld_epsilon(event, delta: float, **options: float) -> float:
    from dp_accounting import pld

    return pld.PLDAccountant(**options).compose(event).get_epsilon(delta)


def test_events_of_each_kind() -> None:
    import dp_accounting as dpa

    assert to_dp_event(gaussian(0.5)) == dpa.GaussianDpEvent(1.0)
    assert to_dp_event(laplace(0.5)) == dpa.LaplaceDpEvent(2.0)
    assert to_dp_event(selection(2.0)) == dpa.ZCDpEvent(0.5)
    assert to_dp_event(selection(2.0, unit="rho")) == dpa.ZCDpEvent(0.5)
    assert to_dp_event(selection(2.0, "above_threshold")) == dpa.ZCDpEvent(2.0)
    assert to_dp_event(Seq((gaussian(0.5), laplace(0.5)))) == dpa.ComposedDpEvent(
        [dpa.GaussianDpEvent(1.0), dpa.LaplaceDpEvent(2.0)]
    )
    assert to_dp_event(Par(())) == dpa.NoOpDpEvent()


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_one_gaussian_release_agrees_with_dp_accounting(relation: str) -> None:
    # One coordinate in [0, 1] and noise of std 2: a replaced row moves the sum by 1, and so does an added one; in the
    # l2 ball of radius 1 a replaced row moves it by 2. Both are exported relative to their own sensitivity.
    sensitivity, std, delta = {"replace": 2.0, "add_remove": 1.0}[relation], 2.0, 1e-6
    mu = sensitivity / std
    release = Seq((Entry("sum", "gaussian", "rho", sensitivity, std, mu**2 / 2),))
    event = to_dp_event(release)
    ours = epsilon_of_rho(total(release, "rho"), delta)
    assert rdp_epsilon(event, delta) == pytest.approx(ours, rel=1e-6)
    exact = pld_epsilon(event, delta, value_discretization_interval=1e-4)
    assert exact == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-6)


def test_an_accountant_told_replace_one_charges_twice_the_sensitivity() -> None:
    import dp_accounting as dpa
    from dp_accounting import pld

    accountant = pld.PLDAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE)
    theirs = accountant.compose(to_dp_event(gaussian(0.125))).get_epsilon(1e-6)
    assert theirs == pytest.approx(gaussian_epsilon(2 * 0.5, 1e-6), rel=1e-6)


def test_several_gaussians_add_up_in_both_libraries() -> None:
    release = Seq((gaussian(0.1, 1.0), gaussian(0.2, 7.0), Par((gaussian(0.3), gaussian(0.1)))))
    event, delta = to_dp_event(release), 1e-5
    rho = total(release, "rho")
    assert rdp_epsilon(event, delta) == pytest.approx(epsilon_of_rho(rho, delta), rel=1e-6)
    assert pld_epsilon(event, delta) == pytest.approx(gaussian_epsilon((2 * rho) ** 0.5, delta), rel=1e-5)


def test_a_mixed_ledger_costs_no_more_than_its_zcdp_total() -> None:
    event = to_dp_event(TREE)
    for delta in (1e-9, 1e-6, 1e-3):
        theirs = rdp_epsilon(event, delta)
        assert theirs <= epsilon_of_rho(total(TREE, "rho"), delta) * (1.0 + 1e-6)
        assert theirs >= rdp_epsilon(to_dp_event(gaussian(0.4)), delta)


@pytest.mark.parametrize(
    "blocks",
    [
        (gaussian(0.3), gaussian(0.2)),
        (Seq((gaussian(0.1), gaussian(0.1))), gaussian(0.15)),
        (laplace(0.3), laplace(0.8)),
        (Seq((laplace(0.3), gaussian(0.1))), Seq((laplace(0.5), gaussian(0.2)))),
    ],
)
def test_parallel_blocks_export_the_dearest(blocks: tuple) -> None:
    dearest = max(blocks, key=lambda block: total(block, "rho"))
    assert to_dp_event(Par(blocks)) == to_dp_event(dearest)
    assert to_dp_event(Par(blocks[::-1])) == to_dp_event(dearest)


@pytest.mark.parametrize(
    "blocks",
    [
        (laplace(1.0), gaussian(0.49)),  # dearest in rho, and far below the other at high orders
        (Seq((laplace(1.0), gaussian(0.01))), Seq((laplace(0.2), gaussian(0.3)))),
        (Par((laplace(1.0), laplace(0.9))), Seq((laplace(0.6), laplace(0.6)))),
        (selection(1.0), gaussian(0.05)),
    ],
)
def test_parallel_blocks_that_cross_export_what_covers_both(blocks: tuple) -> None:
    together = to_dp_event(Par(blocks))
    for delta in (1e-12, 1e-6, 1e-3, 0.05):
        worst = max(rdp_epsilon(to_dp_event(block), delta) for block in blocks)
        assert rdp_epsilon(together, delta) >= worst * (1.0 - 1e-9)


def test_the_dearest_block_alone_would_not_cover() -> None:
    dear, cheap = laplace(1.0), gaussian(0.49)
    assert total(dear, "rho") > total(cheap, "rho")
    assert rdp_epsilon(to_dp_event(dear), 1e-6) < rdp_epsilon(to_dp_event(cheap), 1e-6) / 3


def test_laplace_noise_on_many_entries_is_covered_by_one_event() -> None:
    # A vector release with l1 sensitivity D is exported as one Laplace release of sensitivity D. Shifts of any split
    # of D over the entries lose no more: their composition lies below at every delta.
    import dp_accounting as dpa

    one = to_dp_event(laplace(1.0))
    for shift in (0.5, 0.9, 0.99):
        pieces = dpa.ComposedDpEvent([dpa.LaplaceDpEvent(1.0 / shift), dpa.LaplaceDpEvent(1.0 / (1.0 - shift))])
        for delta in (1e-9, 1e-3, 0.05, 0.2, 0.3):
            assert pld_epsilon(pieces, delta) <= pld_epsilon(one, delta) + 2e-4  # their grid's step, twice


def test_a_ledger_that_failed_closed_is_not_exported() -> None:
    for number in (math.nan, 0.0, math.inf):
        with pytest.raises(ValueError, match="^entry 'sum' has no finite scale and cost"):
            to_dp_event(Seq((Entry("sum", "gaussian", "rho", 1.0, number, 0.5),)))


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args, **kwargs):
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="pip install dp-accounting"):
        to_dp_event(gaussian(0.5))


def test_remarks_and_free_entries_cost_nothing_and_export_as_nothing() -> None:
    free = Entry("axis 3", "exponential", "rho", 1.0, 0.0, 0.0)
    paid = Entry("mean", "gaussian", "rho", 2.0, 4.0, 0.125)
    tree = Seq((Remark("missing cells: looked for without privacy"), free, paid))
    assert total(tree, "rho") == 0.125
    assert entries(tree) == (free, paid)
    assert rows(tree)[0] == {"what": "missing cells: looked for without privacy", "kind": "remark"}
    import dp_accounting

    event = to_dp_event(tree)
    accountant = dp_accounting.rdp.RdpAccountant().compose(event)
    alone = dp_accounting.rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(2.0))
    assert accountant.get_epsilon(1e-6) == pytest.approx(alone.get_epsilon(1e-6))


# -- rounds ------------------------------------------------------------------------------------------------------


def adaptive(rho: jax.Array) -> Rounds:
    """Three rounds, the second at twice the cost of the first, the last of which did not take place."""
    cost = rho * jnp.array([0.25, 0.5, 0.0])
    return Rounds(
        Entry("pair", "gaussian", "rho", jnp.full(3, 2.0), 2.0 / jnp.sqrt(2 * jnp.maximum(cost, 1e-30)), cost)
    )


def test_rounds_add_up_and_leave_out_what_did_not_happen() -> None:
    tree = Seq((gaussian(0.1), adaptive(jnp.asarray(1.0))))
    assert float(total(tree, "rho")) == pytest.approx(0.85, rel=1e-15)
    assert [float(entry.cost) for entry in entries(tree)] == [0.1, 0.25, 0.5]
    batch = jax.jit(jax.vmap(adaptive))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(total(batch, "rho"), [0.75, 1.5])
    assert len(entries(batch)) == 1
    with pytest.raises(ValueError, match="take one lane|leaf\\[i\\]"):
        rows(batch)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda rho: rows(adaptive(rho)))(1.0)


def test_rounds_of_one_scale_share_a_row_of_the_table() -> None:
    cost = np.array([0.25, 0.0, 0.25, 0.125])
    tree = Rounds(Entry("pair", "gaussian", "rho", np.full(4, 2.0), 2.0 / np.sqrt(2 * np.maximum(cost, 0.1)), cost))
    table = rows(Seq((gaussian(0.1), tree)))
    assert [row["what"] for row in table] == ["sum", "pair (2 times)", "pair (1 times)"]
    assert [row["rho"] for row in table] == [0.1, 0.5, 0.125]
    assert json.loads(json.dumps(table)) == table


def test_rounds_are_exported_at_their_price_alone() -> None:
    library = pytest.importorskip("dp_accounting")
    tree = adaptive(jnp.asarray(1.0))
    assert to_dp_event(tree) == library.ZCDpEvent(0.75)
    mixed = Par((Seq((gaussian(0.1), tree)), gaussian(0.2)))
    assert to_dp_event(mixed) == library.ZCDpEvent(pytest.approx(0.85))
    failed = Rounds(Entry("pair", "gaussian", "rho", np.ones(2), np.full(2, np.nan), np.array([0.1, 0.0])))
    with pytest.raises(ValueError, match="failed closed"):
        to_dp_event(failed)

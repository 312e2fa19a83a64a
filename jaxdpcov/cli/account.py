"""`jaxdpcov account`: conversions between zCDP, approximate DP, pure DP and the exact Gaussian curve."""

import math
from fractions import Fraction
from typing import Annotated, Any

import typer

from jaxdpcov.cli.errors import UserError

_USAGE = (
    "give --rho with --delta (for epsilon), --epsilon with --delta (for rho), --rho with --epsilon (for delta), "
    "--epsilon alone (its price in rho) or --rho alone (epsilon at some delta), such as --rho 0.5 --delta 1e-6"
)
_DELTAS = (1e-5, 1e-6, 1e-8, 1e-10)


def command(
    rho: Annotated[float | None, typer.Option(help="rho of zero-concentrated DP.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="epsilon of approximate DP; of pure DP without others.")] = None,
    delta: Annotated[float | None, typer.Option(help="delta of approximate DP.")] = None,
    gaussian: Annotated[
        bool,
        typer.Option("--gaussian", help="The exact curve of one Gaussian release with this rho, fixed in advance."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, numbers in full.")] = False,
) -> None:
    """Convert a privacy budget. Numbers are rounded to the safe side: epsilon and delta up, rho down.

    Example: jaxdpcov account --rho 0.5 --delta 1e-6
    """
    from jaxdpcov.cli import show

    given = {name for name, value in (("rho", rho), ("epsilon", epsilon), ("delta", delta)) if value is not None}
    if len(given) == 3 or given <= {"delta"}:
        raise UserError(_USAGE)
    if gaussian and len(given) != 2:
        raise UserError("--gaussian needs two of --rho, --epsilon and --delta")
    document, text = _gaussian(rho, epsilon, delta) if gaussian else _convert(rho, epsilon, delta)
    if json:
        show.write_json(document)
    else:
        show.write(text)


def _convert(rho: float | None, epsilon: float | None, delta: float | None) -> tuple[dict[str, Any], str]:
    """The answer as a document and as text, on the zCDP curve (or pure DP)."""
    from jaxdpcov.cli.show import round_down as down
    from jaxdpcov.cli.show import round_up as up
    from jaxdpcov.privacy.accounting import delta_of_rho, epsilon_of_rho, rho_of_epsilon
    from jaxdpcov.privacy.budget import ApproxDP, PureDP, to_zcdp

    if rho is None and delta is None:
        pure = PureDP(epsilon)
        price, selection = float(to_zcdp(pure).rho), pure.epsilon**2 / 8
        return (
            {"curve": "pure", "epsilon": pure.epsilon, "rho": price, "rho_exponential": selection},
            f"{epsilon:g}-DP implies {up(price)}-zCDP, and {up(selection)}-zCDP where it is an exponential mechanism\n"
            f"(the other way there is none: no zCDP budget implies pure DP)",
        )
    if rho is None:
        assert epsilon is not None and delta is not None
        ApproxDP(epsilon, delta)
        rho = rho_of_epsilon(epsilon, delta)
        text = f"{down(rho)}-zCDP implies ({epsilon:g}, {delta:g})-DP, and no larger rho is known to"
        return {"curve": "zcdp", "rho": rho, "epsilon": epsilon, "delta": delta}, text
    if epsilon is not None:
        delta = delta_of_rho(rho, epsilon)
        text = f"{rho:g}-zCDP implies ({epsilon:g}, {up(delta)})-DP"
        return {"curve": "zcdp", "rho": rho, "epsilon": epsilon, "delta": delta}, text
    if delta is not None:
        epsilon = epsilon_of_rho(rho, delta)
        text = f"{rho:g}-zCDP implies ({up(epsilon)}, {delta:g})-DP"
        return {"curve": "zcdp", "rho": rho, "epsilon": epsilon, "delta": delta}, text
    curve = [{"epsilon": epsilon_of_rho(rho, some), "delta": some} for some in _DELTAS]
    pure = PureDP.from_zcdp(rho)
    lines = [f"{rho:g}-zCDP implies ({up(point['epsilon'])}, {point['delta']:g})-DP" for point in curve]
    lines.append(f"a pure-DP mechanism has the price {rho:g} at --epsilon {down(pure.epsilon)}")
    return {"curve": "zcdp", "rho": rho, "points": curve, "pure_epsilon": pure.epsilon}, "\n".join(lines)


def _gaussian(rho: float | None, epsilon: float | None, delta: float | None) -> tuple[dict[str, Any], str]:
    """The same on the exact curve of one Gaussian release, mu = sensitivity / std = sqrt(2 rho)."""
    from jaxdpcov.cli.show import round_down as down
    from jaxdpcov.cli.show import round_up as up
    from jaxdpcov.privacy.accounting import gaussian_delta, gaussian_epsilon, gaussian_mu
    from jaxdpcov.privacy.budget import ZCDP, ApproxDP

    if rho is None:
        assert epsilon is not None and delta is not None
        ApproxDP(epsilon, delta)
        mu = gaussian_mu(epsilon, delta)
        rho = 0.5 * mu * mu
        while 2 * Fraction(rho) > Fraction(mu) ** 2:
            rho = math.nextafter(rho, 0.0)
    else:
        mu = math.sqrt(2.0 * ZCDP(rho).rho)
        while Fraction(mu) ** 2 < 2 * Fraction(rho):
            mu = math.nextafter(mu, math.inf)
        if epsilon is None:
            assert delta is not None
            epsilon = gaussian_epsilon(mu, delta)
        else:
            delta = gaussian_delta(mu, epsilon)
    assert delta is not None
    text = (
        f"one Gaussian release with rho = {down(rho)} (noise std {up(1 / mu)} times the sensitivity), "
        f"fixed in advance, is exactly ({up(epsilon)}, {up(delta)})-DP"
    )
    return {"curve": "gaussian", "rho": rho, "mu": mu, "epsilon": epsilon, "delta": delta}, text

"""`jaxdpcov plan`: predicted errors of the mechanisms before any budget is spent, from public inputs alone."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxdpcov.bounds import Bounds
from jaxdpcov.cli import bounds as bounds_file
from jaxdpcov.cli.errors import UserError
from jaxdpcov.cli.estimate import parse_ball, parse_columns, parse_options
from jaxdpcov.cli.options import BallCenter, Delta, Epsilon, Radius, Rho


def command(
    n: Annotated[int, typer.Option("--n", help="Number of rows (or persons), public.", show_default=False)],
    d: Annotated[
        int | None, typer.Option("--d", help="Number of columns; left out where bounds name them.", show_default=False)
    ] = None,
    bounds: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public bounds, as for `estimate`; their columns are the d.")
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]LOW:HIGH", help="Public bounds of a column; without a name, of all. Repeatable."),
    ] = None,
    radius: Radius = None,
    ball_center: BallCenter = None,
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    assume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:SETTING=VALUE,...]",
            help="What rows are like: a population of jaxdpcov.sim, such as ar1:correlation=0.8,scale=2, or a public "
            "data set such as iris; a reference for the bounds unless given.",
        ),
    ] = None,
    release: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Assume what an earlier release says instead.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="A wanted error: which budget, and which n, reach it?")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[,NAME...]", help="Mechanisms to compare; all that apply unless given. Repeatable."),
    ] = None,
    relation: Annotated[
        str, typer.Option(metavar="replace|add_remove", help="Neighbouring relation; n is public under replace.")
    ] = "replace",
    metric: Annotated[
        str,
        typer.Option(
            metavar="frobenius|scaled|relative|spectral|mahalanobis|mean",
            help="The error: of the covariance in data units, in units of the bounds, ...; or of the mean.",
        ),
    ] = "frobenius",
    repetitions: Annotated[int, typer.Option(metavar="R", help="Runs of each mechanism.")] = 16,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the simulated rows and noise.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the error of every mechanism that applies, without any data.

    Example: jaxdpcov plan --n 10000 --d 5 --bound 0:1 --rho 0.5 --method gaussian,diagonal

    Compiling takes a few seconds a mechanism; --method leaves the others out.
    """
    boxes = bounds_file.gather(bounds, [flag for flag in bound or [] if "=" in flag])
    public, d = _bounds(d, boxes, [flag for flag in bound or [] if "=" not in flag], radius, ball_center)
    if assume is not None and release is not None:
        raise UserError("--assume and --release are two answers to one question: give one")
    methods = parse_columns(method or []) or None

    from jaxdpcov import sim
    from jaxdpcov.cli import show
    from jaxdpcov.estimate import check_budget
    from jaxdpcov.plan import plan
    from jaxdpcov.release import load

    budget = check_budget(rho=rho, epsilon=epsilon, delta=delta)
    assumed: Any = None
    if assume is not None:
        name, _, settings = assume.partition(":")
        pairs = [part for part in settings.split(",") if part.strip()]
        assumed = sim.make(name.strip(), d, **parse_options(pairs, "--assume"))
    elif release is not None:
        if not release.expanduser().is_file():
            raise UserError(f"--release: there is no file {release}")
        assumed = load(release.expanduser())
    found = plan(
        n, d, public, budget, assumed=assumed, target=target, methods=methods, relation=relation, metric=metric,
        repetitions=repetitions, seed=seed,
    )  # fmt: skip
    if json:
        show.write_json(found.to_dict())
    else:
        show.write(str(found))


def _bounds(
    d: int | None, boxes: dict[str, bounds_file.Bound], common: list[str], radius: float | None, center: str | None
) -> tuple[Bounds, int]:
    """The bounds and the number of columns."""
    if boxes and common:
        raise UserError("--bound LOW:HIGH is for all columns: give it, or one bound for each name")
    if len(common) > 1:
        raise UserError("--bound LOW:HIGH without a name is for all columns: give it once")
    ball = parse_ball(radius, center, bool(boxes or common))
    if boxes and d not in (None, len(boxes)):
        raise UserError(f"--d {d} does not go with bounds of {len(boxes)} columns")
    if not boxes and d is None:
        raise UserError("--d is missing: the number of columns")
    if ball is not None:
        assert d is not None
        return ball, d
    if boxes:
        each = list(boxes.values())
        return Bounds.box([one.low for one in each], [one.high for one in each]), len(each)
    if not common:
        raise UserError("no bounds: give --bound LOW:HIGH for all columns, --bounds FILE, or --radius")
    assert d is not None
    try:
        low, high = (bounds_file.number(end) for end in common[0].split(":"))
    except ValueError:
        raise UserError(f"--bound {common[0]!r} must be two finite numbers LOW:HIGH, such as 0:1") from None
    return Bounds.box(low, high), d

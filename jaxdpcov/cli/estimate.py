"""`jaxdpcov estimate`: from a file of rows, public bounds and a budget to a release."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxdpcov.bounds import Bounds, BoxBounds, L2Bounds
from jaxdpcov.cli import bounds as bounds_file
from jaxdpcov.cli.errors import UserError
from jaxdpcov.cli.options import BallCenter, Delta, Epsilon, Radius, Rho
from jaxdpcov.estimate import DEFAULT_METHOD


def command(
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV, Parquet, npy or npz file.", show_default=False)],
    bounds: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Public bounds: a .toml, .yaml or .json file; `columns` prints a template."),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW:HIGH", help="Public bounds of one column; goes before the file. Repeatable."),
    ] = None,
    radius: Radius = None,
    ball_center: BallCenter = None,
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    method: Annotated[
        str, typer.Option(help="Mechanism; `methods` lists them. auto: chosen by the bounds, the budget and options.")
    ] = DEFAULT_METHOD,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,NAME...]", help="Columns to use; all unless given. Repeatable.", show_default=False
        ),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B,...", help="Public categories of a column: it becomes 0/1 columns. Repeatable."),
    ] = None,
    person: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that says whose row it is: protect persons, not rows.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(help="Rows kept of each person; all unless given.")] = None,
    missing: Annotated[
        str,
        typer.Option(
            metavar="row|cell|error",
            help="A missing cell: move its row, or the cell, to the centre of the bounds, or refuse.",
        ),
    ] = "row",
    center: Annotated[
        str | None,
        typer.Option(metavar="private|zero|pairs", help="How the covariance is centred; left out, as the method does."),
    ] = None,
    relation: Annotated[
        str, typer.Option(metavar="replace|add_remove", help="Neighbouring relation; n is public under replace.")
    ] = "replace",
    private_bound: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=STD",
            help="Find tighter bounds of a column privately, within its public ones, for a tenth of the budget; its "
            "standard deviation must be STD at most. Repeatable.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another choice of the method. Repeatable.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=2**63 - 1,
            help="FOR STUDY ONLY: a seed can be guessed, which undoes the protection.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Save the release to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out replace a file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no table.")] = False,
) -> None:
    """Release a private mean and covariance of the columns of a file.

    Example: jaxdpcov estimate rows.csv --bound age=0:120 --bound bmi=10:60 --columns age,bmi --rho 0.5

    The key comes from the operating system unless --seed is given.
    """
    if quiet and out is None and not json:
        raise UserError("--quiet without --out or --json would spend the budget and show nothing")
    options = parse_options(option or [])
    found: dict[str, Any] = {}
    if private_bound is not None:
        found["private_bounds"] = parse_options(private_bound, "--private-bound")
    chosen = parse_columns(columns or []) or None

    import jax

    # Here and not in `estimate` alone: what is read off a release is computed in 64 bits too.
    jax.config.update("jax_enable_x64", True)
    from jaxdpcov.cli import show
    from jaxdpcov.data.io import describe_columns
    from jaxdpcov.estimate import check_arguments, estimate

    check_arguments(
        method=method, rho=rho, epsilon=epsilon, delta=delta, center=center, relation=relation, missing=missing,
        options=check_options(options, method), bounds=BoxBounds if radius is None else L2Bounds,
    )  # fmt: skip
    boxes = bounds_file.gather(bounds, bound or [])
    ball = parse_ball(radius, ball_center, bool(boxes))
    if out is not None:
        check_out(out, data, force)
    described = describe_columns(data)
    categories = parse_categories(category or [], [name for name, _ in described])
    public = ball or match_bounds(boxes, described, chosen, categories, person, data)
    with show.progress(not quiet) as report:
        release = estimate(
            data,
            bounds=public,
            rho=rho,
            epsilon=epsilon,
            delta=delta,
            method=method,
            center=center,
            relation=relation,
            columns=chosen,
            categories=categories or None,
            person=person,
            max_rows=max_rows,
            missing=missing,
            key=seed,
            progress=report,
            **found,
            **options,
        )
    # The budget is spent from here on: a release that cannot be saved must be printed all the same.
    unsaved = None
    if out is not None:
        try:
            release.save(out.expanduser())
        except OSError as error:
            unsaved = f"--out: {out} cannot be written ({error.strerror}); the release is in the output"
            quiet = False
    if json:
        reading = show.read_budget(release, delta)
        show.write_json(release.to_dict() | {"implies": reading, "study_only": release.key_source == "study"})
    elif not quiet:
        show.write_release(release, delta=delta, saved=None if out is None or unsaved else str(out))
    if unsaved:
        raise UserError(unsaved)


def parse_columns(texts: Sequence[str]) -> list[str]:
    """Names from `a,b` and repeated flags; a name with a comma goes into double quotes.

    >>> parse_columns(["a,b", '"c, d"'])
    ['a', 'b', 'c, d']
    """
    return [name for text in texts for name in split_commas("--columns", text)]


def split_commas(flag: str, text: str) -> list[str]:
    """The parts of a comma-separated list, in which double quotes keep commas."""
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        raise UserError(f"{flag} {text!r} must be a list such as a,b,c, with double quotes about commas") from None
    return [part.strip() for part in parts]


def parse_categories(texts: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=A,B` for each column; where there are several `=`, the longest name that is a column's own counts.

    >>> parse_categories(["sex=F,M", "a=b=<1,>=1"], ["a", "a=b", "sex"])
    {'sex': ['F', 'M'], 'a=b': ['<1', '>=1']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        places = [place for place, letter in enumerate(text) if letter == "="]
        known = [place for place in places if text[:place].strip() in names]
        if not places or not text[: places[0]].strip():
            raise UserError(f"--category {text!r} must be NAME=FIRST,SECOND, such as --category sex=F,M")
        cut = known[-1] if known else places[0]
        name = text[:cut].strip()
        if name in found:
            raise UserError(f"--category is given twice for column {name!r}")
        if not text[cut + 1 :].strip():
            raise UserError(f"--category {text!r} lists no category; write NAME=FIRST,SECOND")
        found[name] = split_commas("--category", text[cut + 1 :])
    return found


def parse_options(texts: Sequence[str], flag: str = "--option") -> dict[str, Any]:
    """`NAME=VALUE` of a method's config: true and false, numbers, lists of numbers, and text otherwise.

    >>> parse_options(["mean_share=0.3", "shrink=true", "psd=none", "std=20,5000"])
    {'mean_share': 0.3, 'shrink': True, 'psd': 'none', 'std': (20, 5000)}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            example = "psd=floor" if flag == "--option" else "age=15"
            raise UserError(f"{flag} {text!r} must be NAME=VALUE, such as {flag} {example}")
        if name in found:
            raise UserError(f"{flag} is given twice for {name!r}")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    parts = [_number(part.strip()) for part in text.split(",")]
    if None in parts:
        return text
    return parts[0] if len(parts) == 1 else tuple(parts)


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def check_options(options: dict[str, Any], method: str) -> dict[str, Any]:
    """The options, none of which may stand for a flag of its own."""
    for name in options:
        if name in ("center", "relation"):
            raise UserError(f"--option {name}=... is the flag --{name}")
    return options


def parse_ball(radius: float | None, center: str | None, boxed: bool) -> Bounds | None:
    """The l2 ball of `--radius`, None without it."""
    if radius is None:
        if center is not None:
            raise UserError("--ball-center goes with --radius")
        return None
    if boxed:
        raise UserError("--radius is another kind of bounds than --bounds and --bound: give one kind")
    if center is None:
        return Bounds.l2(radius)
    try:
        numbers = [bounds_file.number(part) for part in center.split(",")]
    except ValueError:
        raise UserError(f"--ball-center {center!r} must be finite numbers, such as 0 or 40,170") from None
    return Bounds.l2(radius, numbers[0] if len(numbers) == 1 else numbers)


def match_bounds(
    boxes: dict[str, bounds_file.Bound],
    described: Sequence[tuple[str, str]],
    chosen: Sequence[str] | None,
    categories: dict[str, list[str]],
    person: str | None,
    data: str,
) -> dict[str, tuple[float, float]]:
    """Bounds for exactly the columns that will be used, or a line that names the flag to add."""
    types = dict(described)
    names = [name.strip() for name in chosen] if chosen else [n for n in types if person is None or n != person.strip()]
    used: list[str] = []
    indicators: list[str] = []
    for name in names:
        if name in categories:
            indicators += [f"{name}={value}" for value in categories[name]]
            used += indicators[-len(categories[name]) :]
        elif types.get(name) == "text":
            raise UserError(
                f"column {name!r} is text: list its public categories with --category {name}=FIRST,SECOND, or choose "
                "other columns with --columns"
            )
        else:
            used.append(name)
    if not set(names) <= set(types) or len(set(names)) < len(names):
        return {name: (bound.low, bound.high) for name, bound in boxes.items()}  # the reader says what is wrong
    if not boxes and len(indicators) < len(used):
        raise UserError(
            f"no bounds: give --bound NAME=LOW:HIGH for each column, such as {bounds_file.flag_for(used[0])}, or "
            f"--bounds FILE; `jaxdpcov columns {data} --format toml` prints such a file to fill in"
        )
    return bounds_file.match(boxes, used, indicators)


def check_out(out: Path, data: str, force: bool) -> None:
    """Refuse what could not be written, before any budget is spent."""
    place = out.expanduser()
    if place.suffix != ".npz":
        raise UserError(f"--out: {out} must end in .npz")
    if place.is_dir() or not place.parent.is_dir():
        raise UserError(f"--out: {out} must be a file in a directory that exists")
    if not os.access(place.parent, os.W_OK):
        raise UserError(f"--out: the directory of {out} cannot be written to")
    if place.exists():
        if os.path.exists(data) and os.path.samefile(place, data):
            raise UserError("--out must not be the file of the data")
        if not force:
            raise UserError(f"--out: {out} exists; --force replaces it")

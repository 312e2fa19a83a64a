"""`jaxdpcov columns`: names and types of a file's columns, never values, and a bounds file to fill in."""

from pathlib import Path
from typing import Annotated

import typer

from jaxdpcov.cli import bounds as bounds_file
from jaxdpcov.cli.errors import UserError


def command(
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV, Parquet, npy or npz file.", show_default=False)],
    format: Annotated[
        str | None, typer.Option(metavar="toml|yaml|json", help="Print only the bounds template, in this format.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the template to this .toml, .yaml or .json file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print names and types as JSON.")] = False,
) -> None:
    """Print names and types of the columns of a file, and a template for --bounds, its bounds empty.

    Types come from the file's schema, or from the first block of a CSV file. No value is ever shown.

    Example: jaxdpcov columns rows.csv --format toml > bounds.toml
    """
    if sum((format is not None, out is not None, json)) > 1:
        raise UserError("--format, --out and --json exclude each other")
    if format is not None and format not in bounds_file.FORMATS:
        raise UserError(f"--format must be one of {', '.join(bounds_file.FORMATS)}; got {format!r}")
    kind = format or "toml"
    if out is not None:
        kind = bounds_file.file_format(out, "--out")
        if out.expanduser().exists():
            raise UserError(f"--out: {out} exists; it may hold bounds, and is not replaced")

    from jaxdpcov.cli import show
    from jaxdpcov.data.io import describe_columns

    described = describe_columns(data)
    if json:
        show.write_json({"columns": [{"name": name, "type": type_} for name, type_ in described]})
        return
    if format is not None:
        show.write(bounds_file.template(described, kind))
        return
    template = bounds_file.template(described, kind)
    if out is not None:
        try:
            with out.expanduser().open("x", encoding="utf-8") as file:
                file.write(template + "\n")
        except OSError as error:
            raise UserError(f"--out: {out} cannot be written ({error.strerror})") from None
    show.write_table(["column", "type"], described)
    if out is None:
        show.write(f"\nA file for --bounds, to fill in (--out FILE writes it):\n\n{template}")
    else:
        show.write(f"\ntemplate written to {out}: fill in the bounds, then give --bounds {out}")

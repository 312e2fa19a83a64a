"""Flags that several commands take: the ball that bounds rows, and the budget."""

from typing import Annotated

import typer

Radius = Annotated[
    float | None, typer.Option(help="Bound the length of whole rows instead: an l2 ball of this radius.")
]
BallCenter = Annotated[
    str | None,
    typer.Option(metavar="C[,C...]", help="Centre of that ball, 0 unless given: one number, or one a column."),
]
Rho = Annotated[float | None, typer.Option(help="Budget: rho of zero-concentrated DP.")]
Epsilon = Annotated[float | None, typer.Option(help="Budget: epsilon; pure DP unless --delta is given.")]
Delta = Annotated[float | None, typer.Option(help="Budget: delta, with --epsilon.")]

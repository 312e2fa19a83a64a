"""Make `health.csv` beside this file: person-years of the RAND Health Insurance Experiment, from statsmodels.

Source: the RAND Health Insurance Experiment (United States, 1974-1982), in the selection of A. C. Cameron and
P. K. Trivedi, "Microeconometrics: Methods and Applications" (Cambridge University Press, 2005), as bundled with
statsmodels (`statsmodels/datasets/randhie/src/randhie.csv`), whose licence note for the set reads "This is in the
public domain." One row is one person in one study year; a person has up to five.

Run with statsmodels and pandas installed (neither is needed to use jaxdpcov):

    python docs/examples/make_health.py
"""

from pathlib import Path

import pandas as pd
import statsmodels.datasets.randhie as randhie

#: Column of the source -> our name, decimals kept.
COLUMNS = {
    "zper": ("person", 0),
    "xage": ("age", 1),
    "female": ("female", 0),
    "educdec": ("education", 0),
    "num": ("family_size", 0),
    "income": ("income", 0),
    "mhi": ("mental_health", 1),
    "physlm": ("limitation", 3),
    "mdvis": ("visits", 0),
}


def main() -> None:
    """Select, rename and round the columns; keep the order of the rows and their missing cells."""
    source = Path(randhie.__file__).parent / "src" / "randhie.csv"
    table = pd.read_csv(source, usecols=list(COLUMNS))[list(COLUMNS)]
    for name, (_, decimals) in COLUMNS.items():
        table[name] = table[name].round(decimals).astype("Int64" if decimals == 0 else "float64")
    table.columns = [name for name, _ in COLUMNS.values()]
    target = Path(__file__).with_name("health.csv")
    table.to_csv(target, index=False, lineterminator="\n")
    print(f"{target.name}: {len(table)} rows, {table['person'].nunique()} persons")


if __name__ == "__main__":
    main()

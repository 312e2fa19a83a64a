"""Tables and plots of the study of CoinPress, from its stored raw errors: docs/results/coinpress.md."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SPEED = RESULTS / "data" / "coinpress_speed.txt"
Result = dict[str, Any]

#: The published figures at n = 3000 (Biswas, Dong, Kamath and Ullman 2020): d = 10, Sigma = I; and the mean's, d = 50.
PUBLISHED = {0: 0.191, 1: 2.84, 2: 0.557, 3: 0.306, 4: 0.353, 5: 0.397}
PUBLISHED_MEAN = {0: 0.221, 1: 1.07, 2: 0.281, 3: 0.272, 4: 0.271}
#: The same by an independent slow form with the order of A and the projection put right, sgw and goe (4%).
RIGHT = {1: (3.09, 2.47), 2: (0.48, 0.363), 3: (0.255, 0.227), 4: (0.237, 0.217), 5: (0.236, 0.218)}

INTRO = """# CoinPress: accuracy and speed

Made by `python bench/accuracy/coinpress.py` (accuracy) and `python bench/coinpress.py --save` (speed); `--report` of
the first makes this page and its plots again from the raw errors in `data/coinpress.json`.
{versions}

Errors are means over the trials, trimmed by a tenth at each end, with their standard error. The error of a covariance
is ||Sigma^(-1/2) (S - Sigma) Sigma^(-1/2)||_F, that of a mean its l2 distance in standard deviations, that of a
variance |estimate/variance - 1|. Rows are Gaussian of mean zero, moments are taken about zero (`center="zero"`), rho
= 0.5 and beta = 0.05 where nothing else is said; "not private" is the sample's own moment on the same rows. "covered"
counts the trials whose confidence set held the truth.
"""

FIGURES = """## The published figures

d = 10, Sigma = I, K = 10 sqrt(d), rho = 0.5, `constants="practical"`, t rounds, {trials} trials. "published" is what
Biswas, Dong, Kamath and Ullman (2020) show at n = 3000, "slow form" an independent plain form with A in the right
order.

![error by n and rounds](coinpress_figures.png)
"""

WHY = """
One round (t = 1) lies above the published value and from t = 2 on all lie below, for two reasons, both in the code
that was published with the paper and not in its text. (1) It maps rows by X A and goes back by A^-1 Z A^-1. A is a
product of symmetric matrices and symmetric itself only up to the second round; from the third on rows go by X A^T and
back by A^-1 Z A^-T, or estimate and covering set are those of another matrix. (2) Its projection to positive
semidefinite matrices clamps singular values, which are never negative: it returns |Z|. A noisy eigenvalue of -3
becomes 3, where the projection makes it 0. At t = 1 with Sigma far below the prior bound most of Z is noise and |Z|
happens to be nearer; in later rounds it inflates the covering set and the estimate. With both faults put into a slow
form the published values come out:
"""


def trimmed(errors: Any) -> tuple[float, float]:
    """The mean without a tenth at each end, and its standard error (Tukey and McLaughlin 1963)."""
    errors = np.sort(np.asarray(errors, np.float64))
    cut = len(errors) // 10
    kept = errors[cut : len(errors) - cut]
    winsorised = np.clip(errors, kept[0], kept[-1])
    return float(kept.mean()), float(winsorised.std(ddof=1) / (1.0 - 2.0 * cut / len(errors)) / len(errors) ** 0.5)


def show(result: Result | None) -> str:
    if result is None:
        return ""
    mean, se = trimmed(result["errors"])
    return f"{mean:.3g} ± {se:.1g}"


def table(head: Iterable[str], lines: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows) + "\n"


class Store:
    """The results by what they say of themselves."""

    def __init__(self, results: list[Result]) -> None:
        self.results = results

    def find(self, **wanted: Any) -> list[Result]:
        return [r for r in self.results if all(r["point"].get(name) == value for name, value in wanted.items())]

    def one(self, **wanted: Any) -> Result | None:
        found = self.find(**wanted)
        return found[0] if found else None


def axes(width: float = 7.0, height: float = 4.0) -> Any:
    from matplotlib.figure import Figure

    ax = Figure(figsize=(width, height), layout="constrained").add_subplot()
    ax.grid(True, which="major", color="0.9")
    ax.set_axisbelow(True)
    return ax


def save(ax: Any, name: str) -> None:
    ax.figure.savefig(RESULTS / f"coinpress_{name}.png", dpi=110, metadata={"Software": None})


def curve(ax: Any, x: Any, found: list[Result], **style: Any) -> None:
    """Trimmed means with a band of two standard errors."""
    values = np.array([trimmed(r["errors"]) for r in found]).reshape(-1, 2)
    ax.errorbar(x, values[:, 0], yerr=2.0 * values[:, 1], capsize=2, linewidth=1.3, markersize=4, **style)


def figures(store: Store) -> str:
    sizes = sorted({r["point"]["n"] for r in store.find(study="figures")})
    lines: list[list[Any]] = []
    worst, above = 0.0, []
    for n in sizes:
        plain = store.one(study="figures", n=n, mechanism="sample")
        lines.append([n, "not private", show(plain), "", PUBLISHED[0] if n == 3000 else "", ""])
        for t in range(1, 6):
            sgw, goe = (store.one(study="figures", n=n, rounds=t, noise=noise) for noise in ("sgw", "goe"))
            assert sgw is not None and goe is not None
            (a, da), (b, db) = trimmed(sgw["errors"]), trimmed(goe["errors"])
            if b > a:
                above.append((n, t, (b - a) / np.hypot(da, db)))
            right = " / ".join(map(str, RIGHT[t])) if n == 3000 else ""
            if n == 3000:
                worst = max(worst, abs(a / RIGHT[t][0] - 1.0), abs(b / RIGHT[t][1] - 1.0))
            lines.append([n, t, show(sgw), show(goe), PUBLISHED[t] if n == 3000 else "", right])
    ax = axes(8.5)
    for t in range(1, 6):
        for noise, style in (("sgw", "o--"), ("goe", "o-")):
            found = [r for n in sizes for r in store.find(study="figures", n=n, rounds=t, noise=noise)]
            curve(ax, sizes, found, fmt=style, color=f"C{t - 1}", label=f"t = {t}, {noise}")
    curve(ax, sizes, store.find(study="figures", mechanism="sample"), fmt="k:", label="not private")
    ax.plot([3000] * 5, [PUBLISHED[t] for t in range(1, 6)], "kx", markersize=6, label="published, n = 3000")
    ax.set(xlabel="n", ylabel="relative Frobenius error", yscale="log", xlim=(2800, 8200))
    ax.set_yticks([0.1, 0.2, 0.5, 1, 2, 3], ["0.1", "0.2", "0.5", "1", "2", "3"])
    ax.legend(fontsize=7, ncol=2, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(ax, "figures")
    text = FIGURES.format(trials=store.results[0]["point"]["trials"]) + "\n"
    text += table(["n", "t", "sgw", "goe", "published (sgw)", "slow form (sgw / goe)"], lines)
    text += f"\nAt n = 3000 the largest distance from the slow form is {100 * worst:.1f}%. "
    text += (
        "GOE is below SGW at every point.\n"
        if not above
        else "GOE is above SGW only at "
        + ", ".join(f"n = {n}, t = {t} (by {z:.1f} standard errors)" for n, t, z in above)
        + "; elsewhere it is below.\n"
    )
    faults = store.find(study="faults")
    if faults:
        text += (
            WHY
            + "\n"
            + table(
                ["t", "slow form with both faults", "published"],
                [[r["point"]["rounds"], show(r), PUBLISHED[r["point"]["rounds"]]] for r in faults],
            )
        )
    halves = store.find(study="halves")
    if halves:
        text += (
            "\nHalf of the eigenvalues large (d = 10, n = 8000, five eigenvalues of 1 and five of K = 10 sqrt(d)), "
            "where A is far from symmetric:\n\n"
        )
        t_all = sorted({r["point"]["rounds"] for r in halves})
        text += table(
            ["t", "sgw", "goe", "slow form with both faults"],
            [
                [
                    t,
                    *(show(store.one(study="halves", rounds=t, noise=noise)) for noise in ("sgw", "goe")),
                    show(store.one(study="halves", rounds=t, mechanism="published code")),
                ]
                for t in t_all
            ],
        )
    return text


def means(store: Store) -> str:
    lines = [["not private", show(store.one(study="means", mechanism="sample mean")), PUBLISHED_MEAN[0]]]
    for t in range(1, 5):
        lines.append([t, show(store.one(study="means", rounds=t)), PUBLISHED_MEAN[t]])
    return (
        "## The mean as published\n\nd = 50, mu = 0, Sigma = I known, R = 10 sqrt(50), rho = 0.5, n = 1000, practical "
        "constants.\n\n" + table(["t", "error", "published"], lines)
    )


def pair(store: Store, names: dict[str, Any]) -> list[str]:
    """The cells of a practical and a theory point: errors, rounds, coverage."""
    cells = []
    for constants in ("practical", "theory"):
        found = store.one(**names, constants=constants)
        cells += ["", "", ""] if found is None else [show(found), str(found["rounds"]), coverage(found)]
    return cells


def coverage(result: Result) -> str:
    return f"{result['covered']}/{len(result['errors'])}"


HEAD = ["not private", "practical", "rounds", "covered", "theory", "rounds", "covered"]


def ranges(store: Store) -> str:
    lines = []
    ax = axes(8.5)
    for i, d in enumerate((2, 10, 100)):
        plain = store.one(study="range", mechanism="sample", d=d)
        tops = sorted({r["point"]["upper"] for r in store.find(study="range", d=d, constants="practical")})
        for upper in tops:
            names = {"study": "range", "d": d, "upper": upper}
            lines.append([d, f"{upper / d**0.5:g} sqrt(d)", show(plain), *pair(store, names)])
        for constants, style in (("practical", "o-"), ("theory", "s--")):
            found = [r for u in tops for r in store.find(study="range", d=d, upper=u, constants=constants)]
            x = [r["point"]["upper"] / d**0.5 for r in found]
            curve(ax, x, found, fmt=style, color=f"C{i}", label=f"d = {d}, {constants}")
        if plain is not None:
            ax.axhline(trimmed(plain["errors"])[0], color=f"C{i}", linestyle=":", linewidth=1.0)
    ax.plot([], [], "k:", linewidth=1.0, label="not private")
    ax.set(xlabel="K / sqrt(d)", ylabel="relative Frobenius error", xscale="log", yscale="log", ylim=(0.015, None))
    if ax.get_ylim()[1] < 100.0:
        ax.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"])
    ax.minorticks_off()
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(ax, "range")
    return (
        "## Range and size\n\nSigma = I <= K I, n = 10,000. The default number of rounds. In 100 columns this\n"
        "many rows are few: the sample itself is off by 1, and with the proven tails no second round would shrink the\n"
        "set, so that one is taken and the error grows with K.\n\n"
        "![error by range](coinpress_range.png)\n\n" + table(["d", "K", *HEAD], lines)
    )


def budgets(store: Store) -> str:
    plain = show(store.one(study="budget", mechanism="sample"))
    rhos = sorted({r["point"]["rho"] for r in store.find(study="budget", constants="practical")})
    lines = [[f"{rho:g}", plain, *pair(store, {"study": "budget", "rho": rho})] for rho in rhos]
    return "## Budget\n\nd = 10, Sigma = I, K = 10 sqrt(d), n = 10,000.\n\n" + table(["rho", *HEAD], lines)


SPECTRA = {
    "half": "half 1, half 1e4",
    "log-uniform": "log-uniform from 1 to 1e4",
}


def spectra(store: Store) -> str:
    plain = show(store.one(study="spectrum", mechanism="sample"))
    lines = [[name, plain, *pair(store, {"study": "spectrum", "population": key})] for key, name in SPECTRA.items()]
    text = "## Skewed spectra\n\nI <= Sigma <= 1e4 I, d = 10, n = 10,000.\n\n"
    return text + table(["eigenvalues", *HEAD], lines)


TAILS = {"t5": "Student t, 5 degrees", "t3": "Student t, 3 degrees"}


def tails(store: Store) -> str:
    lines = []
    for population, name in TAILS.items():
        plain = show(store.one(study="tails", mechanism="sample", population=population))
        lines.append([name, plain, *pair(store, {"study": "tails", "population": population})])
    return (
        "## Heavy tails\n\nMultivariate Student t of covariance I, d = 10, K = 10 sqrt(d), n = 10,000. The estimate "
        "stays private; clipping cuts the tails, so it is too small, and coverage is promised for Gaussian rows "
        "only. With 3 degrees of freedom the sample covariance itself has no finite variance.\n\n"
        + table(["rows", *HEAD], lines)
    )


def radii(store: Store) -> str:
    plain = store.one(study="radius", mechanism="sample mean")
    sizes = sorted({r["point"]["radius"] for r in store.find(study="radius", mechanism="mean")})
    lines = [
        [f"{r:g}", show(plain), *pair(store, {"study": "radius", "radius": r, "mechanism": "mean"})] for r in sizes
    ]
    ax = axes()
    for i, (constants, style) in enumerate((("practical", "o-"), ("theory", "s--"))):
        found = [x for r in sizes for x in store.find(study="radius", radius=r, constants=constants)]
        curve(ax, [x["point"]["radius"] for x in found], found, fmt=style, color=f"C{i}", label=constants)
    if plain is not None:
        ax.axhline(trimmed(plain["errors"])[0], color="k", linestyle=":", linewidth=1.0, label="not private")
    ax.set(xlabel="R (standard deviations)", ylabel="l2 error of the mean", xscale="log", ylim=(0.0, None))
    ax.legend(fontsize=8)
    save(ax, "radius")
    return (
        "## Mean from a wide ball\n\nd = 10, Sigma = I known, n = 1000, the mean 0.7 R from the centre of the ball.\n\n"
        "![error by radius](coinpress_radius.png)\n\n" + table(["R", *HEAD], lines)
    )


ONE = """## One column: variance and mean

The variance at the geometric middle of its range [1, K], or a mean 0.7 R from the centre; default rounds. "missed"
counts the trials with an estimate more than half of the truth away (variance), or more than five median errors
(mean): a noise draw in an early round that is below its tail leaves the truth outside of the next interval, and no
later round finds it again.
"""


def columns(store: Store) -> str:
    lines = []
    for r in store.find(study="variance") + store.find(study="mean_1d"):
        p = r["point"]
        errors = np.asarray(r["errors"])
        budget = f"epsilon = {p['epsilon']:g}" if "epsilon" in p else f"rho = {p['rho']:g}"
        variance = p["mechanism"] == "variance_1d"
        name = f"variance, K = {p['upper']:g}" if variance else f"mean, R = {p['radius']:g}"
        missed = int(np.sum(errors > (0.5 if variance else 5.0 * np.median(errors))))
        lines.append(
            [name, budget, p["n"], p["constants"], r["rounds"], show(r), f"{missed}/{len(errors)}", coverage(r)]
        )
    head = ["statistic", "budget", "n", "constants", "rounds", "error", "missed", "covered"]
    return ONE + "\n" + table(head, lines) if lines else ""


def covered(store: Store) -> str:
    """What the theory constants promised and what came of it."""
    found = [r for r in store.results if r["point"].get("constants") == "theory" and "covered" in r]
    gaussian = [r for r in found if not r["point"].get("population", "").startswith("t")]
    if not gaussian:
        return ""
    least = min(gaussian, key=lambda r: r["covered"] / len(r["errors"]))
    return (
        "## Coverage\n\n"
        f'Of {len(gaussian)} settings with Gaussian rows and `constants="theory"` (beta = 0.05) the least coverage is '
        f"{coverage(least)}; all together {sum(r['covered'] for r in gaussian)} of "
        f"{sum(len(r['errors']) for r in gaussian)}. The proven tails are wider than the noise, so this is above "
        "1 - beta. The practical constants promise none; in many columns they give little, for the smaller errors.\n"
    )


def speed() -> str:
    if not SPEED.exists():
        return ""
    return f"## Speed and memory\n\n```\n{SPEED.read_text()}```\n"


def write(results: list[Result], versions: dict[str, str]) -> None:
    store = Store(results)
    said = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    parts: dict[str, Callable[[Store], str]] = {
        "figures": figures,
        "means": means,
        "range": ranges,
        "budget": budgets,
        "spectrum": spectra,
        "tails": tails,
        "radius": radii,
        "variance": columns,
    }
    made = [part(store) for name, part in parts.items() if store.find(study=name)]
    text = "\n".join([INTRO.format(versions=said), *made, covered(store), speed()])
    (RESULTS / "coinpress.md").write_text(text.rstrip() + "\n")

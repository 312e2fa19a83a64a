"""Compiled programs as text: which factorisations of one are independent of each other."""

import itertools
import re
from typing import Any

import jax

#: LAPACK's `eigh`, Cholesky and SVD.
_CALLS = re.compile("lapack_[sd](?:syevd|potrf|gesdd)_ffi")


def independent_factorisations(run: Any, *args: Any) -> tuple[int, int]:
    """How many steps of a compiled program factorise a matrix, and how many pairs of them wait neither for the other.

    A loop counts as one step, whatever it contains.
    """
    text = jax.jit(run).lower(*args).compile({"xla_backend_optimization_level": 0}).as_text()
    bodies = dict(re.findall(r"^(?:ENTRY )?(%[\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S))
    entry = re.search(r"^ENTRY (%[\w.\-]+)", text, re.M)
    assert entry is not None and entry[1] in bodies

    def holds(body: str) -> bool:
        called = re.findall(r"(?:calls|body|to_apply)=(%[\w.\-]+)", body)
        return _CALLS.search(body) is not None or any(holds(bodies[name]) for name in set(called))

    behind: dict[str, set[str]] = {}
    steps = []
    for line in bodies[entry[1]].splitlines():
        name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
        used = [each for each in re.findall(r"%[\w.\-]+", rest) if each in behind]
        behind[name] = set(used).union(*(behind[each] for each in used))
        if holds(rest):
            steps.append(name)
    pairs = itertools.combinations(steps, 2)
    return len(steps), sum(one not in behind[other] and other not in behind[one] for one, other in pairs)

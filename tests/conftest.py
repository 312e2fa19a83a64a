"""Settings of the whole suite: x64, strict promotion, key reuse is an error, and one thread for each test process."""

import itertools
import os
import platform

# One process a core under `-n 2`: inner thread pools would only fight each other. And most of the suite's time is
# compilation, while what the compiler makes of a program is not under test: the older emitters take half the time. They
# may fuse a product into a sum in one place and not in its mirror image, so they go without the instruction for that.
# Set before NumPy and JAX load; `-n 0` compiles as JAX does by itself.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(_name, "1")
    _flags = ["xla_cpu_multi_thread_eigen=false", "xla_cpu_use_fusion_emitters=false"]
    if platform.machine() in ("x86_64", "AMD64"):
        _flags.append("xla_cpu_max_isa=AVX")
    _given = os.environ.get("XLA_FLAGS", "")
    _flags = [_given, *(f"--{_flag}" for _flag in _flags if _flag.split("=")[0] not in _given)]
    os.environ["XLA_FLAGS"] = " ".join(_flags).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

SETTINGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_debug_key_reuse": True,
}
for _name, _value in SETTINGS.items():
    jax.config.update(_name, _value)
jax.config.update("jax_disable_most_optimizations", True)

# Fixed seeds and no time limits for one example: compilation falls on whichever example comes first.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _jax_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run `x64_off` tests with x64 off; fail a test that leaves a global JAX setting changed behind it."""
    if request.node.get_closest_marker("x64_off"):
        with jax.enable_x64(False):
            yield
    else:
        yield
    left = {name: getattr(jax.config, name) for name in SETTINGS}
    for name, value in SETTINGS.items():  # put right, so that the one test at fault fails alone
        jax.config.update(name, value)
    assert left == SETTINGS, f"the test left global JAX settings changed: {left}"


#: Compiled programs stay mapped: beyond about 65,000 maps Linux refuses the next one, and the process dies.
_MAPS, _EVERY = 20_000, 10
_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _room_for_programs() -> Iterator[None]:
    """Forget compiled programs before there are too many of them to go on, or too much memory in them."""
    yield
    maps = Path("/proc/self/maps")
    if next(_tests) % _EVERY == 0 and maps.exists() and maps.read_bytes().count(b"\n") > _MAPS:
        jax.clear_caches()


@pytest.fixture(scope="module")
def fresh_programs() -> Iterator[None]:
    """Compile anew for this file, and forget it all afterwards: for files that patch what is compiled."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def x64_off() -> Iterator[None]:
    """Run the rest of a test with x64 off; as a mark: `@pytest.mark.x64_off`."""
    with jax.enable_x64(False):
        yield

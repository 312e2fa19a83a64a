"""Peak memory of a process that does nothing but one study: prints MiB before the study and at the end.

python bench/_peak.py MECHANISM ROWS COLUMNS REPETITIONS
"""

import resource
import subprocess
import sys
from pathlib import Path

import jax


def peak_mib() -> float:
    """Most resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose ru_maxrss starts at the peak of the process that started this one
        return next(
            int(line.split()[1]) / 2**10 for line in status.read_text().splitlines() if line.startswith("VmHWM")
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def in_a_process(name: str, n: int, d: int, repetitions: int, limit: float) -> tuple[float, float] | None:
    """(before, at the end) in MiB of a fresh process, None where it takes longer than `limit` seconds."""
    command = [sys.executable, str(Path(__file__).resolve()), name, str(n), str(d), str(repetitions)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    before, after = map(float, done.stdout.split()[-2:])
    return before, after


def main() -> None:
    import _studies

    jax.config.update("jax_enable_x64", True)
    name, (n, d, repetitions) = sys.argv[1], map(int, sys.argv[2:5])
    x = _studies.sample(n, d)
    before = peak_mib()
    jax.block_until_ready(_studies.many(name, x, repetitions).run())
    print(before, peak_mib())


if __name__ == "__main__":
    main()

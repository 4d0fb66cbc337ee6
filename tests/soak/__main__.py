"""python -m tests.soak: three tiers under load, and whether what they hold stays where it is; exit code 1 if not."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.soak.run import soak
from tests.soak.sampling import LIMITS


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of measuring, once all has come to rest")
    parser.add_argument("--model", choices=("random", "embedded"), default="random")
    parser.add_argument("--folder", type=Path, help="for logs and summary.json; a temporary one otherwise")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="triptych-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    record = soak(str(EMBEDDED if options.model == "embedded" else random_checkpoint()), folder, options.seconds)
    print(f"at rest after {record.settled_after:.0f} s of load, then {len(record.samples.at)} samples", end=" ")
    print(f"in {options.seconds:g} s; logs in {folder}")
    for outcome, count in sorted(record.outcomes.items()):
        print(f"{count:7} {outcome}")
    for (name, quantity), found in sorted(record.samples.trends().items()):
        limit = LIMITS[quantity]
        print(
            f"{name:8} {quantity:12} {found.first:10.5g} -> {found.last:10.5g} {limit.unit:3} "
            f"growth {found.growth:8.3g} (allowed {limit.allowed:g}), noise {found.noise:.2g}"
        )
    complaints = record.complaints()
    for complaint in complaints:
        print(f"NOT FLAT: {complaint}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()

"""python -m tools.tiny_vl train | export | evaluate | card | sheet [PNG]"""

import sys
from importlib import import_module
from pathlib import Path

_COMMANDS = ("train", "export", "evaluate", "card", "sheet")
_SHEET = Path(__file__).resolve().parents[2] / "docs/tiny-vl-samples.png"


def main() -> int:
    """Hand the rest of the command line to the module of the subcommand's name; returns its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in _COMMANDS:
        print(f"usage: {__doc__}", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m tools.tiny_vl {name}"
    # Only the one that is asked for: training must not need a web client, nor a sheet the training.
    command = import_module(f"tools.tiny_vl.{name}")
    if name == "sheet":
        command.make_sheet(Path(sys.argv[1]) if len(sys.argv) > 1 else _SHEET)
        return 0
    return int(command.main() or 0)


if __name__ == "__main__":
    sys.exit(main())

"""python -m tools.tiny_vl train | export | evaluate | sheet"""

import sys
from importlib import import_module

_COMMANDS = ("train", "export", "evaluate", "sheet")


def main() -> int:
    """Hand the rest of the command line to the module of the subcommand's name; returns its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in _COMMANDS:
        print(f"usage: {__doc__}", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m tools.tiny_vl {name}"
    # Only the one that is asked for: training must not need a web client, nor a sheet the training.
    return int(import_module(f"tools.tiny_vl.{name}").main() or 0)


if __name__ == "__main__":
    sys.exit(main())

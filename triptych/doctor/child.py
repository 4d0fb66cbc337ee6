"""python -m triptych.doctor.child MODULE:FUNCTION RESULT_FD: one check, in a process that may crash or be ended."""

import importlib
import json
import os
import sys
from typing import cast

from triptych.doctor.finding import Asked, Look


def main() -> None:
    """What is asked comes on standard input; the finding goes to the descriptor, since libraries print as they like."""
    module, _, function = sys.argv[1].partition(":")
    asked = Asked.from_json(json.load(sys.stdin))
    look = cast(Look, getattr(importlib.import_module(module), function))
    with os.fdopen(int(sys.argv[2]), "w") as result:
        json.dump(look(asked).as_json(), result)
        result.flush()
        os._exit(0)  # what libraries do on their way out is none of the check, and may hang


if __name__ == "__main__":
    main()

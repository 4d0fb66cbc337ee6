"""Prints how far the fused kernels, run by Triton's interpreter on the CPU, are from float64: a JSON object.

TRITON_INTERPRET=1 python -m tests.models.interpreted_kernels; see test_lean_tower.py.
"""

import json
import os

import torch

from tests.models.kernel_cases import errors
from triptych.models.kernels.choice import fused_kernels


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before the kernels are imported"
    kernels, cpu = fused_kernels(), torch.device("cpu")
    found = {
        # The interpreter multiplies bfloat16's bits as if they were whole numbers.
        str(dtype): errors(kernels, cpu, dtype, products=dtype != torch.bfloat16)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

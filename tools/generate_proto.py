"""Writes triptych/pb from proto/*.proto: python tools/generate_proto.py [OUTPUT_FOLDER]."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(output: Path) -> None:
    """Compile every .proto under the virtual path triptych/pb, so that the generated imports are right unpatched."""
    protos = [f"triptych/pb/{path.name}" for path in sorted((ROOT / "proto").glob("*.proto"))]
    # In a process of its own: the compiler and NIXL bring a protobuf library each, and die of it in one process.
    found = importlib.util.find_spec("grpc_tools")
    if found is None or found.origin is None:
        raise SystemExit("grpcio-tools is not installed: pip install -e '.[dev]'")
    well_known = Path(found.origin).parent / "_proto"
    arguments = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path=triptych/pb={ROOT / 'proto'}",
        f"--proto_path={well_known}",
        f"--python_out={output}",
        f"--pyi_out={output}",
        f"--grpc_python_out={output}",
        *protos,
    ]
    if subprocess.run(arguments, check=False).returncode != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

"""Writes triptych/pb from proto/*.proto: python tools/generate_proto.py [OUTPUT_FOLDER]."""

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(output: Path) -> None:
    """Compile every .proto under the virtual path triptych/pb, so that the generated imports are right unpatched."""
    protos = [f"triptych/pb/{path.name}" for path in sorted((ROOT / "proto").glob("*.proto"))]
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path=triptych/pb={ROOT / 'proto'}",
        f"--proto_path={well_known}",
        f"--python_out={output}",
        f"--pyi_out={output}",
        f"--grpc_python_out={output}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

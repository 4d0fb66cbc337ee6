"""Each stage against what the card allows: python -m bench.roofline [--dry-run]; fills the table of bench/README.md.

For every stage: operations and bytes (bench/roofline_work.py says how they are counted), the floor they give on an
H200, what was measured, and the ratio. Measured here, on the GPU: prompts and decode steps of the language model with
random weights. Taken from other scripts' results where those are there: the tower (encoder-h200.json), hand-overs
(handoff-h200.json) and the router's CPU time (h200-epd.json). --table prints and fills without measuring.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.pages import PAGE, amount, fill, markdown, seconds
from bench.roofline_measure import Stages
from bench.roofline_work import DECODE_STEPS, H200, Decoder, Shapes, Stage, stages
from tools.make_geometry import GEOMETRIES, make_geometry
from triptych.loadgen.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
MODEL = "qwen2.5-vl-7b"
PATCHES = {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}
CHUNK = 4096  # tokens of a prompt in one step, as bench/h200.toml has it where nobody decodes
MOST_TOKENS = 262_144  # of KV at once: 14 GB
DRY_STEPS = ((1, 40), (3, 20))


def main() -> int:
    arguments = read_arguments()
    if not arguments.table:
        found = measure(arguments.dry_run)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    measured = measurements(RESULTS, arguments.output)
    text, vision = GEOMETRIES[MODEL]
    lines = table(list(stages(Decoder.of(text), vision | PATCHES, Shapes())), measured)
    print("\n".join(lines))
    if not arguments.dry_run:
        fill(PAGE, "roofline", lines)
    return 0


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU; the page stays as it is")
    parser.add_argument("--table", action="store_true", help="measure nothing, fill the page from the results")
    parser.add_argument("--output", type=Path, help="default: bench/results/roofline-h200.json, of --dry-run in build/")
    arguments = parser.parse_args(words)
    if arguments.output is None:
        folder = ROOT / "build/h200" if arguments.dry_run else RESULTS
        arguments.output = folder / "roofline-h200.json"
    return arguments


def measure(dry_run: bool) -> dict[str, Any]:
    """Seconds of the language model's stages, and where they come from."""
    device = torch.device("cpu" if dry_run else "cuda")
    geometry, dtype = ("tiny", "float32") if dry_run else (MODEL, "bfloat16")
    folder = ROOT / "build/h200" / geometry
    make_geometry(folder, geometry)
    began = time.monotonic()
    with torch.inference_mode():
        model = Stages(folder, device, dtype, 4096 if dry_run else MOST_TOKENS, turns=2 if dry_run else 7)
        loaded = time.monotonic() - began
        shapes = Shapes(images=0, text_tokens=48) if dry_run else Shapes()
        found = model.all(shapes, 16 if dry_run else CHUNK, DRY_STEPS if dry_run else DECODE_STEPS)
    return {
        "what": "bench/roofline.py",
        **provenance(),
        "device": "cpu" if dry_run else torch.cuda.get_device_name(device),
        "model": geometry,
        "decoder": type(model.model).__name__,
        "load_seconds": round(loaded, 2),
        "seconds": found,
    }


def measurements(results: Path, own: Path) -> dict[str, float]:
    """Seconds by stage, from every result that is there."""
    found: dict[str, float] = {}
    encoder, handoff = _read(results / "encoder-h200.json"), _read(results / "handoff-h200.json")
    for count in (1, 8):
        rate = _at(
            encoder, "workloads", "1280x720, 8 images", "lean, graphs, " + ("packed" if count > 1 else "one by one")
        )
        if rate:
            found[f"tower-{count}"] = count / rate["images_per_second"]
    for key, name, scale in (("rows", "1 item", 1.0), ("kv", "KV, scattered", 1.0)):
        path = _at(handoff, "paths", "cuda_ipc", name)
        if path:
            found[key] = scale * path["p50_ms"] / 1e3
    served = _at(_read(results / "h200-epd.json"), "parts", "w2", "means")
    if served:
        found["router"] = served["router_cpu_per_request"]
    return found | dict(_at(_read(own), "seconds") or {})


def table(rows: Sequence[Stage], measured: Mapping[str, float]) -> list[str]:
    """The page's table; a ratio is measured over floor, and what is left is their difference."""
    header = ("stage", "operations", "bytes", "floor", "bound by", "measured", "ratio", "left on the table")
    lines = []
    for stage in rows:
        floor, value = stage.floor(H200), measured.get(stage.key)
        ratio = "–" if value is None else f"{value / floor:.2f}"
        left = "–" if value is None else seconds(max(0.0, value - floor))
        work = (amount(stage.flops, "FLOP"), amount(stage.bytes, "B"))
        lines.append((stage.what, *work, seconds(floor), stage.bound(H200), seconds(value), ratio, left))
    return markdown(header, lines)


def _read(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _at(found: Any, *names: str) -> Any:
    """What stands below these names, or None."""
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


if __name__ == "__main__":
    raise SystemExit(main())

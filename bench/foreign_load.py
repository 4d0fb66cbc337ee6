"""Load generators of others against three tiers with images: python -m bench.foreign_load aiperf --python PYTHON.

Each is installed in a virtual environment of its own (make load-aiperf, make load-guidellm). Fails unless every request
was answered: the tools' own word is not enough, so the router's counters are read as well.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.checkpoints import EMBEDDED
from tests.served import MODEL, served_model

RESULTS = Path(__file__).parent / "results"
REQUESTS = 64
STREAMS = 4
IMAGES = 2
IMAGE_PIXELS = 224  # a side
OUTPUT_TOKENS = 32
SECONDS = 400.0


def aiperf(python: Path, url: str, folder: Path) -> dict[str, Any]:
    command = [str(python.parent / "aiperf"), "profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat"]
    command += ["--streaming", "--tokenizer", str(EMBEDDED), "--image-batch-size", str(IMAGES)]
    command += ["--image-width-mean", str(IMAGE_PIXELS), "--image-height-mean", str(IMAGE_PIXELS)]
    command += ["--image-format", "jpeg", "--synthetic-input-tokens-mean", "64"]
    command += ["--output-tokens-mean", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"]
    command += ["--concurrency", str(STREAMS), "--request-count", str(REQUESTS), "--random-seed", "1"]
    command += ["--use-server-token-count", "--ui", "none", "--workers-max", "2"]
    command += ["--wait-for-model-timeout", "60", "--wait-for-model-mode", "both", "--artifact-dir", str(folder)]
    run(command)
    (report,) = folder.rglob("profile_export_aiperf.json")
    told = json.loads(report.read_text())
    errors = told.get("error_summary") or []
    completed = int(told["request_count"]["avg"])
    return {
        "completed": completed,
        "errors": sum(int(entry.get("count", 1)) for entry in errors) + REQUESTS - completed,
        "ttft_ms": {name: told["time_to_first_token"][name] for name in ("p50", "p99")},
        "inter_token_ms": {name: told["inter_token_latency"][name] for name in ("p50", "p99")},
        "output_tokens_per_second": told["output_token_throughput"]["avg"],
    }


def guidellm(python: Path, url: str, folder: Path) -> dict[str, Any]:
    prompts, report = folder / "prompts.jsonl", folder / "out.json"
    line = json.dumps({"prompt": "word " * 64, "output_tokens_count": OUTPUT_TOKENS})
    prompts.write_text(f"{line}\n" * REQUESTS)
    images = f"kind=synthetic_image,width={IMAGE_PIXELS},height={IMAGE_PIXELS},images_per_request={IMAGES}"
    command = [str(python.parent / "guidellm"), "run"]
    command += ["--backend", f"kind=openai_http,target={url},model={MODEL}"]
    command += ["--tokenizer", f"kind=hf_auto,model={EMBEDDED}", "--data", f"kind=json_file,path={prompts}"]
    command += ["--data", images, "--profile", f"kind=concurrent,streams={STREAMS}"]
    command += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    command += ["--constraint", "kind=max_duration,seconds=300", "--output", f"kind=json,path={report}"]
    run([*command, "--disable-progress"])
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    made = benchmark["metrics"]["request_totals"]
    return {"completed": made["successful"], "errors": made["errored"] + REQUESTS - made["successful"]}


TOOLS = {"aiperf": aiperf, "guidellm": guidellm}


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stdout[-4000:]}")


def failed_at_router(url: str) -> int:
    """Chat requests that the router answered with anything but success, by its own counters."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    asked = [sample for sample in samples if sample.name == "triptych:requests_total"]
    chats = [sample for sample in asked if "chat" in sample.labels["endpoint"]]
    return int(sum(sample.value for sample in chats if not sample.labels["status"].startswith("2")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("tool", choices=sorted(TOOLS))
    parser.add_argument("--python", type=Path, required=True, help="of the virtual environment that has the tool")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, served_model(Path(name)) as served:
        folder = Path(name) / "artifacts"
        folder.mkdir()
        began = time.monotonic()
        result = TOOLS[arguments.tool](arguments.python, served.url, folder)
        result |= {"seconds": round(time.monotonic() - began, 1), "failed_at_router": failed_at_router(served.url)}
    pip = [str(arguments.python), "-m", "pip", "show", arguments.tool]
    shown = subprocess.run(pip, capture_output=True, text=True).stdout
    version = next((line.split()[1] for line in shown.splitlines() if line.startswith("Version:")), "")
    what = {
        "requests": REQUESTS,
        "concurrency": STREAMS,
        "images": IMAGES,
        "image": f"{IMAGE_PIXELS}x{IMAGE_PIXELS} jpeg",
    }
    what |= {"max_tokens": OUTPUT_TOKENS, "model": "tiny_vl", "topology": "e+p+d", "device": "cpu"}
    written = {"tool": arguments.tool, "version": version, "what": what, "result": result}
    (RESULTS / f"{arguments.tool}.json").write_text(json.dumps(written, indent=1) + "\n")
    print(json.dumps(written, indent=1))
    return 1 if result["errors"] or result["failed_at_router"] else 0


if __name__ == "__main__":
    sys.exit(main())

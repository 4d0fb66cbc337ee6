import subprocess
import sys

MODULES = ("sniff", "digest", "layout", "rows", "rope", "memfd")


def test_what_the_router_uses_brings_in_no_decoder_and_no_torch() -> None:
    imports = "\n".join(f"import triptych.multimodal.{name}" for name in MODULES)
    code = f"{imports}\nimport sys\nprint(sorted({{'PIL', 'torch', 'transformers', 'cv2'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

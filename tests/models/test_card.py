"""What the router learns of a model folder without torch."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.web import QuietHandler, WebServer
from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.card import load_card, resolve_dtype, resolve_folder
from triptych.models.fingerprint import PAGE_BYTES, fingerprint

EMBEDDED = Path(__file__).parents[2] / "triptych/models/tiny_vl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may spoil."""
    return Path(shutil.copytree(EMBEDDED, tmp_path / "model"))


def rewrite(file: Path, **changes: Any) -> None:
    """Sets values of a JSON file; None removes one."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def test_the_embedded_model_has_a_card() -> None:
    card = load_card("tiny-vl", "auto")
    assert card.folder == EMBEDDED.resolve()
    assert card.name == "tiny-vl"
    assert card.eos_token_ids == (2,)
    assert card.max_model_len == 8192
    assert card.vocab_size == json.loads((EMBEDDED / "config.json").read_text())["text_config"]["vocab_size"]
    assert "<|image_pad|>" in card.chat_template
    assert card.adapter.placeholder_id == 5
    assert len(card.fingerprint) == 32
    assert card.default_sampling == {}


def test_a_card_needs_neither_torch_nor_transformers_nor_pillow() -> None:
    script = (
        "import sys; from triptych.models.card import load_card; card = load_card('tiny-vl', 'auto'); "
        "card.adapter.part(card.adapter.plan(640, 480, {}), b'd' * 32, 640, 480, 0); "
        "heavy = ('torch', 'transformers', 'PIL', 'torchvision', 'safetensors'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_local_folder_is_named_after_its_last_part(folder: Path) -> None:
    assert load_card(str(folder), "float32").name == "model"
    assert resolve_folder(str(folder), print) == folder.resolve()


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "preprocessor_config.json", "generation_config.json", "chat_template.jinja"],
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    script = f"from triptych.models.card import load_card; load_card({str(folder)!r}, 'auto')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert f"ConfigError: {folder.resolve() / name} is no regular file" in ended.stderr


def test_nor_are_weights_that_are_no_regular_file(folder: Path) -> None:
    file = folder / "model-00001-of-00002.safetensors"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=f"{file.name} is no regular file"):
        load_card(str(folder), "auto")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ConfigError, match=f"{file.name} is no regular file"):
        load_card(str(folder), "auto")


@pytest.mark.parametrize("model", ["/no/such/folder", "nothing", "./a/b", "a/b/c"])
def test_a_model_that_is_nowhere_is_named(model: str) -> None:
    with pytest.raises(ConfigError, match=f"serve.model is '{model}': no such folder"):
        load_card(model, "auto")


def test_a_hub_id_that_cannot_be_fetched_is_named_and_announced() -> None:
    script = "from triptych.models.card import load_card; load_card('nobody/nothing', 'auto', print)"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("fetching nobody/nothing from the Hugging Face hub")
    assert "ConfigError: serve.model is 'nobody/nothing': no such folder, and the hub said:" in done.stderr


def test_equal_folders_share_a_fingerprint_wherever_they_lie(folder: Path) -> None:
    assert load_card(str(folder), "float32").fingerprint == load_card("tiny-vl", "float32").fingerprint


def test_a_fingerprint_tells_dtypes_apart() -> None:
    prints = {load_card("tiny-vl", dtype).fingerprint for dtype in ("auto", "float32", "bfloat16", "float16")}
    assert len(prints) == 4


def test_a_fingerprint_tells_apart_what_is_kept_in_fewer_bits() -> None:
    kinds = [LanguageSettings(weights=weights, kv_dtype=kv) for weights in ("auto", "fp8") for kv in ("auto", "fp8")]
    prints = [load_card("tiny-vl", "auto", precision=kind.precision).fingerprint for kind in kinds]
    assert len(set(prints)) == 4
    assert prints[0] == load_card("tiny-vl", "auto").fingerprint


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_fingerprint_covers_every_byte_of_the_small_files(folder: Path, name: str) -> None:
    before = load_card(str(folder), "auto").fingerprint
    (folder / name).write_text((folder / name).read_text() + " ")
    assert load_card(str(folder), "auto").fingerprint != before


def flip(file: Path, step: int, begin: int, end: int | None) -> None:
    """Changes every step-th byte of the data in [begin, end); negative positions count from the file's end."""
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for offset in range(start, len(data))[begin:end:step]:
        data[offset] ^= 1
    file.write_bytes(data)


def test_a_fingerprint_covers_every_byte_of_small_weights(folder: Path) -> None:
    before = fingerprint(folder, "auto")
    flip(folder / "model-00002-of-00002.safetensors", step=10**9, begin=1_234_567, end=1_234_568)
    assert fingerprint(folder, "auto") != before


@pytest.mark.parametrize(("begin", "end", "step"), [(0, PAGE_BYTES, 1), (-1, None, 1), (0, None, 1000)])
def test_a_fingerprint_samples_large_weights_from_end_to_end(
    folder: Path, begin: int, end: int | None, step: int
) -> None:
    before = fingerprint(folder, "auto", whole_file_bytes=0)
    assert fingerprint(folder, "auto", whole_file_bytes=0) == before
    flip(folder / "model-00002-of-00002.safetensors", step, begin, end)
    assert fingerprint(folder, "auto", whole_file_bytes=0) != before


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "tokenizer.json", "model-00001-of-00002.safetensors"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=name):
        load_card(str(folder), "auto")


def test_another_family_is_named_before_the_files_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="model_type is 'llama'; known ones: qwen2_5_vl"):
        load_card(str(tmp_path), "auto")


def test_weights_that_are_cut_short_are_named(folder: Path) -> None:
    file = folder / "model-00002-of-00002.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"model-00002-of-00002.safetensors has \d+ bytes"):
        load_card(str(folder), "auto")


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    with pytest.raises(ConfigError, match="no safetensors"):
        load_card(str(folder), "auto")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"image_token_id": 6}, r"at token 6, the tokenizer has <\|image_pad\|> as 5"),
        ("config.json", {"model_type": "bert"}, "'bert'"),
        ("config.json", {"vision_config": None}, "vision_config"),
        ("config.json", {"quantization_config": {"bits": 4}}, "quantised"),
        ("config.json", {"text_config": {"vocab_size": 448}}, "max_position_embeddings is None"),
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id is '2'"),
        ("generation_config.json", {"top_p": "high"}, "top_p 'high'"),
        ("generation_config.json", {"temperature": -0.5}, "temperature -0.5, expected 0 to 100"),
        ("generation_config.json", {"temperature": 101}, "temperature 101, expected 0 to 100"),
        ("generation_config.json", {"temperature": float("nan")}, "temperature nan, expected 0 to 100"),
        ("generation_config.json", {"top_p": 1.5}, "top_p 1.5, expected 0 to 1"),
        ("generation_config.json", {"min_p": -0.1}, "min_p -0.1, expected 0 to 1"),
        ("generation_config.json", {"top_k": -2}, "top_k -2, expected -1, 0"),
        ("generation_config.json", {"top_k": 2.5}, "top_k 2.5, expected -1, 0"),
        ("generation_config.json", {"top_k": float("inf")}, "top_k inf, expected -1, 0"),
        ("generation_config.json", {"repetition_penalty": 0}, "repetition_penalty 0, expected 0.01 to 100"),
    ],
)
def test_a_value_that_cannot_work_is_named(folder: Path, file: str, changes: Mapping[str, Any], message: str) -> None:
    rewrite(folder / file, **changes)
    with pytest.raises(ConfigError, match=message):
        load_card(str(folder), "auto")


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_file_that_holds_no_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_card(str(folder), "auto")


def test_end_tokens_come_from_generation_config_then_config_then_tokenizer(folder: Path) -> None:
    rewrite(folder / "generation_config.json", eos_token_id=[2, 0])
    assert load_card(str(folder), "auto").eos_token_ids == (2, 0)
    rewrite(folder / "generation_config.json", eos_token_id=None)
    assert load_card(str(folder), "auto").eos_token_ids == (2,)  # config.json's text_config
    text = json.loads((folder / "config.json").read_text())["text_config"]
    del text["eos_token_id"]
    rewrite(folder / "config.json", text_config=text)
    rewrite(folder / "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})
    assert load_card(str(folder), "auto").eos_token_ids == (0,)
    rewrite(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ConfigError, match="no end token"):
        load_card(str(folder), "auto")


def test_a_chat_template_is_found_wherever_transformers_looks(folder: Path) -> None:
    rewrite(folder / "processor_config.json", chat_template="P")
    rewrite(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": "T"}])
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    (folder / "chat_template.jinja").write_text("F")
    found = []
    for remove in ("processor_config.json", "chat_template.json", "chat_template.jinja", "tokenizer_config.json"):
        found.append(load_card(str(folder), "auto").chat_template)
        (folder / remove).unlink()
    assert found == ["P", "J", "F", "T"]
    with pytest.raises(ConfigError, match="no chat template"):
        load_card(str(folder), "auto")


def test_default_sampling_is_what_generation_config_sets(folder: Path) -> None:
    rewrite(folder / "generation_config.json", temperature=0.5, top_k=7, do_sample=True, max_new_tokens=3)
    assert load_card(str(folder), "auto").default_sampling == {"temperature": 0.5, "top_k": 7}


@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 0, "top_p": 0, "top_k": -1, "min_p": 0, "repetition_penalty": 0.01},
        {"temperature": 100, "top_p": 1.0, "top_k": (1 << 32) - 1, "min_p": 1, "repetition_penalty": 100.0},
        {"top_k": 50.0},
    ],
)
def test_default_sampling_may_lie_on_the_ends_of_its_range(folder: Path, chosen: Mapping[str, float]) -> None:
    rewrite(folder / "generation_config.json", **chosen)
    assert load_card(str(folder), "auto").default_sampling == chosen


def test_an_image_processor_nested_in_processor_config_counts_first(folder: Path) -> None:
    rewrite(folder / "processor_config.json", image_processor={"min_pixels": 784, "max_pixels": 784 * 4})
    adapter = load_card(str(folder), "auto").adapter
    assert adapter.plan(1000, 1000, {}).rows == 4


def test_dtype_auto_is_float32_on_the_cpu_and_the_checkpoints_own_elsewhere(folder: Path) -> None:
    card = load_card(str(folder), "auto")
    assert resolve_dtype(card, "auto", "cpu") == "float32"
    assert resolve_dtype(card, "auto", "cuda") == "bfloat16"
    assert resolve_dtype(card, "float16", "cpu") == "float16"
    rewrite(folder / "config.json", dtype=None)
    assert resolve_dtype(load_card(str(folder), "auto"), "auto", "cuda") == "bfloat16"  # as stored
    rewrite(folder / "config.json", torch_dtype="float16")
    assert resolve_dtype(load_card(str(folder), "auto"), "auto", "cuda") == "float16"
    with pytest.raises(ConfigError, match="'int8'"):
        load_card(str(folder), "int8")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "odd"}, "model_type is 'odd'"),
        ({"model_type": "qwen2_5_vl", "quantization_config": {}}, "quantised"),
    ],
    ids=["an unknown family", "quantised weights"],
)
def test_of_a_hubs_model_that_cannot_be_served_nothing_but_its_numbers_is_fetched(
    config: Mapping[str, object], said: str, tmp_path: Path
) -> None:
    asked: list[str] = []
    told = json.dumps(config).encode()

    class Hub(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path == "/org/model/resolve/main/config.json"
            headers = {"etag": '"of-the-config"', "x-repo-commit": "0" * 40} if known else {}
            self.answer(200 if known else 404, headers, told if known else b"")

        do_HEAD = do_GET

    script = "from triptych.models.card import load_card; load_card('org/model', 'auto')"
    with WebServer(Hub) as hub:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert said in done.stderr
    assert {path for path in asked if "org/model" in path} == {"/org/model/resolve/main/config.json"}

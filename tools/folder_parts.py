"""What made-up model folders share: words, the cut of text before merging, chat template, image processor. No torch."""

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# Words the tokenizer knows whole or in part; what a test writes is mostly made of them.
_WORDS = """
a about above after again all also an and animal answer any apple are around as ask at away back bag ball bank be bear
because bed before behind below between big bird black blue boat book both bottle bottom box bread bright brown
building bus but by camera can car cat center chair chart church circle city clear clock close cloud coat coffee cold
color colour compare corner could count cup dark day describe difference different do does dog door down draw each
earth eight empty end english every example eye face far few field find fire first fish five flower fly food for four
from front fruit garden give glass go gold good grass great green ground group hair half hand hat have he head here
high hill him horse hot house how hundred ice if image in inside is it its just kind know lake lamp large last leaf
left less letter light like line list little long look low main make man many map mark market meaning message metal
middle milk moon more most mountain mouth move much music name near never new next night nine no north not nothing now
number object ocean of off old on one only open or orange other out over page paint paper part path people person
photo picture pink place plain plant plate play please point purple question quick rain read rectangle red right river
road rock roof room round row salt same sand say school sea second see seven shadow shape she ship shirt shop short
show side sign six size sky sleep small snow so some south space square star station step still stone stop store
street sun table tail take tall tell ten text than that the their them then there they thing third this three time
title to today together top touch tower train tree triangle turn two under up very view wall want was watch water way
we wear week well west what wheel when where which white who why wide wind window winter with woman wood word work
world would write yellow yes you young zero
"""
WORDS = tuple(_WORDS.split())

# Digits one by one, words with their space, runs of anything else: as Qwen's tokenizer cuts text before merging.
SPLIT = r"'\p{L}{1,2}\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{%- set pictures = namespace(seen=0) -%}
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
{%- set pictures.seen = pictures.seen + 1 -%}
{%- if add_vision_id -%}{{- 'Picture ' + pictures.seen|string + ': ' -}}{%- endif -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# What the family does with every image.
PIXELS: dict[str, Any] = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
}

IMAGE_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "min_pixels": 56 * 56,
    "max_pixels": 448 * 448,  # 256 embedding rows: an image of any size stays cheap on a CPU
    **PIXELS,
}


def untrained_tokenizer() -> Tokenizer:
    """Byte-level BPE that cuts and writes text as Qwen's does, and knows no word yet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer

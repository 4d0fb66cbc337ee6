"""From messages to prompt tokens, such that no text of a stranger's ever becomes a special token.

Where a message's text holds the text of a special token, or ends in the beginning of one, a sentinel is put between
its characters before the template sees it. In what the template renders, whole special tokens are therefore the
template's own. They become ids; what lies between them loses its sentinels and is encoded as plain text, each run in
one piece, as the model's tokenizer would. Ids are compared at the end: if a special one came out of plain text after
all, or the images do not match the placeholders, nothing is served.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from triptych.errors import ConfigError, InvalidRequest
from triptych.models.card import ModelCard
from triptych.models.config_values import read_optional_json
from triptych.router.api.messages import Message, images_of
from triptych.router.api.tools.definition import Tool
from triptych.router.pipeline.chat_template import SCHEMA_WORDS, ChatTemplate

_LONG_TEXT_CHARACTERS = 4096
_PIECE_CHARACTERS, _MOST_PIECES = 64, 1024  # whose ids are kept
_MOST_ARGUMENTS_CHARACTERS = 1 << 22  # read and written anew by the template, so how many tokens they are is not known

# Unicode promises that these never stand for a character.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class PromptBuilder:
    """A model's tokenizer and chat template; safe to use from several threads."""

    def __init__(self, card: ModelCard, template_file: str = "") -> None:
        """template_file: a chat template in place of the model's own

        Raises ConfigError for a tokenizer that cannot keep text and special tokens apart.
        """
        self.tokenizer = _tokenizer(card.folder / "tokenizer.json")
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        # Specials written in plain runs stay plain; other added tokens are found, as the model's own tokenizer would.
        self.tokenizer.encode_special_tokens = True
        self._placeholder = card.adapter.placeholder_text
        self._specials = {
            token.content: (token_id, token)
            for token_id, token in self.tokenizer.get_added_tokens_decoder().items()
            if token.special or token.content == self._placeholder or token_id in card.eos_token_ids
        }
        if self._placeholder not in self._specials:
            raise ConfigError(f"the tokenizer has no token {self._placeholder!r}, where images go")
        self._guard = SpecialTextGuard(list(self._specials))
        self._longest_token = max(map(len, self.tokenizer.get_vocab()))
        # Mostly what a template writes around every message and image.
        self._encode_piece = functools.lru_cache(_MOST_PIECES)(self._encode)
        self.special_ids = frozenset(token_id for token_id, _ in self._specials.values())
        source = _read(template_file) if template_file else card.chat_template
        self._template = ChatTemplate(
            source,
            _named_specials(card.folder),
            [word for word in SCHEMA_WORDS if not self._guard.pattern.search(word)],
        )

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises InvalidRequest for a prompt's ids that have been read for a model with another vocabulary."""
        most = self.tokenizer.get_vocab_size(with_added_tokens=True)
        if max(ids) >= most or self._specials[self._placeholder][0] in ids:
            raise InvalidRequest("prompt has token ids that are not of the model that is served by now", param="prompt")

    def runs(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, must_tell_tools: bool = False
    ) -> list[tuple[int, ...]]:
        """The prompt's token ids, cut at the placeholders: one run more than there are images, some maybe empty.

        must_tell_tools: a template that does not know tools may not leave them out
        Raises InvalidRequest where the template refuses the messages, or leaves out an image or a call.
        """
        self._check_template(messages, must_tell_tools)
        sentinel = _sentinel_for(self._template.texts(messages, tools))
        rendered = self._template.render(messages, tools, lambda text: self._guard.broken(text, sentinel))
        runs: list[list[int]] = [[]]
        pieces = self._guard.pattern.split(rendered)
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                runs[-1] += self.encode_text(self._stripped(pieces, index).replace(sentinel, ""))
            elif piece == self._placeholder:
                runs.append([])
            else:
                runs[-1].append(self._specials[piece][0])
        num_images = len(images_of(messages))
        if len(runs) - 1 != num_images:
            raise InvalidRequest(
                f"the model's chat template places {len(runs) - 1} of the {num_images} images", param="messages"
            )
        return [tuple(run) for run in runs]

    def _check_template(self, messages: Sequence[Message], must_tell_tools: bool) -> None:
        if must_tell_tools and not self._template.tells_tools:
            raise InvalidRequest(
                "the model's chat template tells it of no tools; let tool_choice require a call, or have the server "
                "use another template (router.chat_template)",
                param="tools",
            )
        size = sum(len(call.arguments) for message in messages for call in message.tool_calls)
        if size > _MOST_ARGUMENTS_CHARACTERS:
            raise InvalidRequest(
                f"arguments of calls have {size} characters together, expected at most {_MOST_ARGUMENTS_CHARACTERS}",
                param="messages",
            )
        if self._template.tells_calls:
            return
        if any(message.tool_calls or message.role == "tool" for message in messages):
            raise InvalidRequest(
                "the model's chat template has no place for calls of tools and their results", param="messages"
            )

    def fewest_tokens(self, num_characters: int) -> int:
        """No text of so many characters has fewer tokens than this."""
        return num_characters // self._longest_token

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; what looks like a special token in it is characters. Raises InvalidRequest."""
        if len(text) <= _PIECE_CHARACTERS:
            ids = self._encode_piece(text)
        elif len(text) < _LONG_TEXT_CHARACTERS:
            ids = self._encode(text)
        else:  # the only way that lets other threads run meanwhile
            ids = tuple(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        if not self.special_ids.isdisjoint(ids):
            raise InvalidRequest("the model's tokenizer makes a special token of plain text", param="messages")
        return ids

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _stripped(self, pieces: Sequence[str], index: int) -> str:
        """A plain piece without the white space that its neighbours take with them."""
        piece = pieces[index]
        if index > 0 and self._specials[pieces[index - 1]][1].rstrip:
            piece = piece.lstrip()
        if index + 1 < len(pieces) and self._specials[pieces[index + 1]][1].lstrip:
            piece = piece.rstrip()
        return piece


class SpecialTextGuard:
    """Breaks the texts of special tokens inside other text, and what neighbours could complete to one."""

    def __init__(self, specials: Sequence[str]) -> None:
        short = [text for text in specials if len(text) < 2]
        if short:
            raise ConfigError(f"the tokenizer has the special token {short[0]!r}; one character cannot be kept apart")
        longest_first = sorted(specials, key=len, reverse=True)
        self.pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._specials = tuple(specials)
        self._longest = max(map(len, specials))
        self._beginnings = {text[:cut] for text in specials for cut in range(1, len(text))}
        self._endings = {text[cut:] for text in specials for cut in range(1, len(text))}

    def broken(self, text: str, sentinel: str) -> str:
        """The text, from which no special token can come, also not together with text before or behind it.

        Templates may strip texts; a sentinel never stands where that would change what is stripped.
        """
        while self.pattern.search(text):  # again, since tokens may overlap
            text = self.pattern.sub(lambda match: match[0][0] + sentinel + match[0][1:], text)
        stripped = text.strip()
        if not stripped:
            return text
        start = len(text) - len(text.lstrip())
        end = start + len(stripped)
        cuts = set()
        for length in range(1, min(self._longest, len(stripped) + 1)):
            if stripped[-length:] in self._beginnings:
                cuts.add(end - length + 1)
            if stripped[:length] in self._endings:
                cuts.add(start)
        if len(stripped) < self._longest and any(stripped in special for special in self._specials):
            cuts.add(start)
        for cut in sorted(cuts, reverse=True):
            text = text[:cut] + sentinel + text[cut:]
        return text


def _sentinel_for(texts: Sequence[str]) -> str:
    """A noncharacter that none of the texts holds."""
    for candidate in _NONCHARACTERS:
        if not any(candidate in text for text in texts):
            return candidate
    raise InvalidRequest("the messages hold every noncharacter of Unicode", param="messages")


def _named_specials(folder: Path) -> Mapping[str, str]:
    """`bos_token` and its like, as templates name them."""
    named = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in read_optional_json(folder / file).items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                named[name] = content
    return named


def _read(template_file: str) -> str:
    try:
        return Path(template_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"router.chat_template is {template_file!r}, which cannot be read: {error}") from error


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"cannot read the tokenizer {file}: {error}") from error

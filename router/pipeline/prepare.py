"""From a checked chat request to what the tiers are asked: images loaded, prompt laid out, limits held."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from triptych.errors import ContextTooLong, InvalidMedia, InvalidRequest, MediaTooLarge
from triptych.models.card import ModelCard
from triptych.models.plan import ItemPlan
from triptych.multimodal.digest import item_digest
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.router.api.messages import Message, images_of
from triptych.router.api.messages import TextPart as MessageText
from triptych.router.api.sampling import max_tokens_for, prompt_too_long, sampling_for
from triptych.router.api.schema import Chat, ChatRequest
from triptych.router.api.tools.definition import Tool
from triptych.router.edge.budget import Holding
from triptych.router.edge.caller import NOBODY, Caller
from triptych.router.fleet.fleet import Fleet
from triptych.router.media.item_terms import OPTIONS_PARAM, ItemTerms, terms_of
from triptych.router.media.loader import MediaLoader, Picture, at_image
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.pipeline.request import Prepared
from triptych.router.threads import WorkThreads

_TOKENIZE_IN_THREAD_CHARACTERS = 4096
_TOKENIZE_IN_THREAD_PARTS = 64  # a template takes its time for each, be it empty


class Preparer:
    """Nothing here asks a worker; the fleet only tells how long a prompt may be."""

    def __init__(
        self,
        card: ModelCard,
        prompts: PromptBuilder,
        loader: MediaLoader,
        fleet: Fleet,
        default_max_tokens: int,
        threads: WorkThreads,
        *,
        isolate_tenants: bool = True,
    ) -> None:
        self._card = card
        self._prompts = prompts
        self._loader = loader
        self._fleet = fleet
        self._default_max_tokens = default_max_tokens
        self._threads = threads
        self._isolate_tenants = isolate_tenants

    async def prepare(self, chat: Chat, holding: Holding, timeline: Timeline, caller: Caller = NOBODY) -> Prepared:
        """Raises what the client has to change."""
        terms = self._terms(chat.request, caller)
        max_model_len = self._fleet.max_model_len(self._card.max_model_len)
        # Before anyone spends seconds on tokenizing what cannot fit.
        fewest = self._fewest_tokens(chat)
        if fewest >= max_model_len:
            raise prompt_too_long(f"at least {fewest}", max_model_len)
        if chat.rules.grammar is not None:  # before anything of it is begun; it may take some tenths of a second
            with timeline.measure("grammar"):
                await asyncio.get_running_loop().run_in_executor(self._threads.parsing, chat.rules.check)
        with timeline.measure("tokenize"):
            runs = await self._runs(chat, chat.rules.tools)
        pictures = await self._loader.load(images_of(chat.messages), holding, timeline, terms.names)
        with timeline.measure("layout"):
            layout = lay_out(self._parts(runs, pictures, terms))
        image_tokens = [item.span.length for item in layout.items]
        try:
            max_tokens = max_tokens_for(
                chat.request, layout.num_tokens, max_model_len, self._default_max_tokens, image_tokens
            )
        except ContextTooLong as error:
            await self._blame_tools(error, chat, runs, layout.num_tokens, max_model_len)
            raise
        return Prepared(
            layout=layout,
            media=tuple({picture.media.index: picture.media for picture in pictures}.values()),
            sampling=sampling_for(chat.request, self._card, max_tokens, chat.rules.grammar),
            branches=chat.request.n or 1,
            image_params=tuple(picture.part.param for picture in pictures),
            grammar_param=chat.rules.grammar_param if chat.rules.grammar is not None else "",
            cache_salt=terms.cache_salt,
            priority=chat.request.priority or 0,
        )

    def _fewest_tokens(self, chat: Chat) -> int:
        if isinstance(chat.prompt, tuple):
            return len(chat.prompt)
        text = _num_characters(chat.messages) if chat.prompt is None else len(chat.prompt)
        return self._prompts.fewest_tokens(text)

    async def _blame_tools(
        self, error: ContextTooLong, chat: Chat, runs: Sequence[tuple[int, ...]], num_tokens: int, max_model_len: int
    ) -> None:
        """Names the tools where they are most of a prompt that would have room without them."""
        if not chat.rules.tools:
            return
        without = await self._runs(chat, ())
        of_tools = sum(map(len, runs)) - sum(map(len, without))
        if 2 * of_tools > num_tokens and num_tokens - of_tools < max_model_len:
            error.param = "tools"
            error.message += f" Tools take {of_tools} tokens: offer fewer, or describe them in fewer words."

    async def _runs(self, chat: Chat, tools: Sequence[Tool]) -> list[tuple[int, ...]]:
        """The prompt's ids between its images."""
        messages, prompt = chat.messages, chat.prompt
        if isinstance(prompt, tuple):
            self._prompts.check_ids(prompt)
            return [prompt]
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads.prompts)
        if prompt is not None:
            is_short = len(prompt) < _TOKENIZE_IN_THREAD_CHARACTERS
            encode = self._prompts.encode_text
            return [tuple(encode(prompt) if is_short else await in_thread(encode, prompt))]
        few = _num_parts(messages) < _TOKENIZE_IN_THREAD_PARTS
        if tools:
            render = partial(self._prompts.runs, messages, tools, must_tell_tools=chat.rules.by_prompt)
            return await in_thread(render)
        if few and _num_characters(messages) < _TOKENIZE_IN_THREAD_CHARACTERS:
            return self._prompts.runs(messages)
        return await in_thread(self._prompts.runs, messages)

    def _parts(
        self, runs: Sequence[tuple[int, ...]], pictures: Sequence[Picture], terms: ItemTerms
    ) -> list[TextPart | ItemPart]:
        parts: list[TextPart | ItemPart] = [TextPart(runs[0])]
        for index, (picture, run) in enumerate(zip(pictures, runs[1:], strict=True)):
            parts += (self._item(index, picture, terms), TextPart(run))
        return parts

    def _terms(self, request: ChatRequest, caller: Caller) -> ItemTerms:
        return terms_of(
            request.mm_processor_kwargs,
            request.cache_salt,
            caller.tenant,
            self._card.adapter,
            isolate=self._isolate_tenants,
        )

    def _item(self, index: int, picture: Picture, terms: ItemTerms) -> ItemPart:
        width, height = picture.header.width, picture.header.height
        try:
            plan, options = self._plan_with_detail(width, height, picture.part.detail, terms)
        except (InvalidMedia, InvalidRequest, MediaTooLarge) as error:
            if error.param in self._card.adapter.option_names:
                error.param = f"{OPTIONS_PARAM}.{error.param}"
            raise at_image(error, index, picture.part) from None
        digest = item_digest(picture.media.digest, options, self._card.fingerprint, terms.cache_salt)
        return self._card.adapter.part(plan, digest, width, height, picture.media.index)

    def _plan_with_detail(
        self, width: int, height: int, detail: str, terms: ItemTerms
    ) -> tuple[ItemPlan, Mapping[str, int]]:
        """An image for which its `detail` makes no difference is the same item as without."""
        of_detail = self._card.adapter.detail_options(detail)
        if of_detail:
            options = terms.options_with(of_detail)
            plan = self._plan(width, height, options)
            if plan != self._card.adapter.plan(width, height, terms.options):
                return plan, options
        return self._plan(width, height, terms.options), terms.options

    def _plan(self, width: int, height: int, options: Mapping[str, int]) -> ItemPlan:
        plan = self._card.adapter.plan(width, height, options)
        most = self._fleet.max_item_tokens()
        # However many items a request has, they go through in turns; one that no encoder can hold never will.
        if plan.encoder_tokens > most:
            raise MediaTooLarge(
                f"the image of {width}x{height} pixels becomes {plan.encoder_tokens} encoder tokens, "
                f"the encoders of this server take at most {most}"
            )
        return plan


def _num_parts(messages: Sequence[Message]) -> int:
    """A message of plain text is one, a call counts for as many as make a thread worth it."""
    return sum(
        (1 if isinstance(message.content, str) else len(message.content))
        + len(message.tool_calls) * _TOKENIZE_IN_THREAD_PARTS
        for message in messages
    )


def _num_characters(messages: Sequence[Message]) -> int:
    return sum(
        len(message.content)
        if isinstance(message.content, str)
        else sum(len(part.text) for part in message.content if isinstance(part, MessageText))
        for message in messages
    )

"""What a reload asks of the process that operators speak to: the new model is read there before anything is started."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from triptych.cluster.sets import Phase
from triptych.cluster.view import SetView, View
from triptych.config import Settings
from triptych.errors import ConfigError, InvalidRequest
from triptych.models.card import load_card
from triptych.models.folder import EMBEDDED_MODEL, model_name


class Keeper(Protocol):
    """Who keeps the workers."""

    def view(self) -> View: ...

    def reload(self, model: str, seconds: float, keep_seconds: float) -> None: ...


def bring_up(
    wish: Mapping[str, Any], settings: Settings, keeper: Keeper, told: Sequence[Mapping[str, Any] | None]
) -> None:
    """What an operator wishes, unless it is there. told: as of `is_to_come`. Raises InvalidRequest."""
    model, fingerprint = read_model(wish["model"], settings)
    if is_to_come(model, fingerprint, keeper.view().sets, told):
        keeper.reload(model, wish["seconds"], wish["keep_seconds"])


def read_model(model: str, settings: Settings) -> tuple[str, str]:
    """The model as workers and routers are told it, and its fingerprint in hex.

    Raises InvalidRequest for one that is no folder here, or that cannot be served.
    """
    if model != EMBEDDED_MODEL and not (Path(model).is_absolute() and Path(model).is_dir()):
        raise InvalidRequest(
            f"{model[:200]!r} is no folder on the server's machine, by its whole path; what is on a hub has to be "
            "downloaded first, on every node",
            param="model",
        )
    serve = settings.serve
    try:
        card = load_card(model, serve.dtype, load_format=serve.load_format, precision=settings.language.precision)
    except ConfigError as error:
        raise InvalidRequest(str(error), param="model") from None
    return (model if model == EMBEDDED_MODEL else str(card.folder.resolve())), card.fingerprint.hex()


def is_to_come(model: str, fingerprint: str, sets: Sequence[SetView], told: Sequence[Mapping[str, Any] | None]) -> bool:
    """Whether another model is to serve once all that is under way is done.

    told: what each router has answered of the sets, if it has

    Raises InvalidRequest for a model whose files were put over those that a set was loaded from.
    """
    fingerprints = {each["set"]: each["fingerprint"] for answer in told if answer for each in answer["sets"]}
    here = [each for each in sets if each.model == model and each.phase is not Phase.LEAVING]
    for each in here:
        if fingerprints.get(each.number, fingerprint) != fingerprint:
            raise InvalidRequest(
                f"{model} is where set {each.number} was loaded from, and has other files now; a worker that is "
                "started again would take them. Put a new model into a folder of its own",
                param="model",
            )
    coming = [each for each in sets if each.phase is Phase.COMING]
    last = coming or [each for each in sets if each.phase is Phase.SERVING]
    return all(each.model != model for each in last)


def named(settings: Settings) -> Settings:
    """With the name that clients go on to use whatever model is served: that of the first one, where none is given."""
    serve = settings.serve
    name = serve.served_name or model_name(serve.model, Path(serve.model))
    return replace(settings, serve=replace(serve, served_name=name))

"""The page and its feed as routes of the app."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from triptych.router.page.feed import LIVE_PATH, LiveFeed
from triptych.router.page.files import INDEX, PageFiles

PAGE_PATH = "/"
FOLDER_PATH = "/page/"


def is_of_page(path: str) -> bool:
    """Whether the page asks for it, questions apart."""
    return path in (PAGE_PATH, LIVE_PATH) or path.startswith(FOLDER_PATH)


def add_page(app: FastAPI, feed: LiveFeed) -> None:
    """None of it is in the API's description: it changes with the page."""
    page = PageFiles()

    async def show(http: HTTPRequest) -> Response:
        answer = page.answer(http, http.path_params.get("name", INDEX))
        if answer is None:
            raise HTTPException(404)
        return answer

    async def live(http: HTTPRequest) -> Response:
        return feed.listen(http.scope["state"])

    for path in (PAGE_PATH, FOLDER_PATH + "{name}"):
        app.add_route(path, show, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_route(LIVE_PATH, live, methods=["GET"], include_in_schema=False)

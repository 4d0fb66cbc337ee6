"""What keeps somebody from using a page: read off the browser's own accessibility tree, and off computed styles.

A small part of WCAG 2.2 AA, the part that a machine can judge and that is broken by accident.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.browser import Tab

# Roles that mean nothing without a name.
_NAMED = {
    *("button", "link", "textbox", "checkbox", "radio", "combobox", "listbox", "slider", "meter", "image", "img"),
    *("region", "form", "table", "log", "alertdialog", "dialog", "heading", "columnheader", "figure"),
}
_ONCE = {"banner", "main", "contentinfo"}

_CONTRAST = (Path(__file__).parent / "contrast.js").read_text()

_OUTLINE = """
(() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
})()
"""


def flaws(tab: Tab) -> list[str]:
    """What is wrong with the page as it is now, in words; empty for a page that is well."""
    return [*_of_document(tab), *_of_tree(tab), *_of_contrast(tab)]


def tree(tab: Tab) -> list[tuple[str, str, dict[str, Any]]]:
    """Role, name and properties of all that assistive technology is told of, in order."""
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    return [
        (
            node["role"]["value"],
            node.get("name", {}).get("value", "").strip(),
            {each["name"]: each["value"].get("value") for each in node.get("properties", ())},
        )
        for node in nodes
        if not node.get("ignored") and "role" in node
    ]


def shows_focus(tab: Tab) -> bool:
    """Whether one can see what has the focus."""
    shown: bool = tab.evaluate(_OUTLINE)
    return shown


def _of_document(tab: Tab) -> Iterator[str]:
    if not re.fullmatch(r"[a-z]{2}(-[A-Z]{2})?", tab.evaluate("document.documentElement.lang")):
        yield "the page does not say its language"
    if not tab.evaluate("document.title.trim()"):
        yield "the page has no title"
    for name, count in Counter(tab.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")).items():
        if count > 1:
            yield f"{count} elements have the id {name}"
    missing = """["aria-labelledby", "aria-describedby"]
      .flatMap((name) => [...document.querySelectorAll(`[${name}]`)].map((each) => each.getAttribute(name)))
      .flatMap((ids) => ids.split(" ")).filter((id) => !document.getElementById(id))"""
    yield from (f"a label is to be #{name}, which is nowhere" for name in tab.evaluate(missing))


def _of_tree(tab: Tab) -> Iterator[str]:
    level, counts = 0, Counter[str]()
    for role, name, properties in tree(tab):
        counts[role] += 1
        is_focusable = properties.get("focusable") and role not in ("RootWebArea", "generic")
        if not name and (role in _NAMED or is_focusable):
            yield f"a {role} has no name"
        if role == "heading":
            if properties["level"] > level + 1:
                yield f"the heading {name!r} is of level {properties['level']}, behind one of level {level}"
            level = properties["level"]
            counts["h1"] += level == 1
    for role in (*sorted(_ONCE), "h1"):
        if counts[role] != 1:
            yield f"there are {counts[role]} of {role}, and should be one"


def _of_contrast(tab: Tab) -> Iterator[str]:
    texts = tab.evaluate(_CONTRAST)
    if not texts:
        yield "no text is shown"
    for each in texts:
        if each["contrast"] < each["least"]:
            yield f"{each['text']!r} has a contrast of {each['contrast']:.2f}, and needs {each['least']}"

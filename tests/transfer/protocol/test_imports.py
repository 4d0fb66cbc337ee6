"""The machines decide and nothing else: they can be run on any clock, over any network, by any thread."""

import ast
from pathlib import Path

from triptych.transfer import protocol

ALLOWED = {"collections.abc", "dataclasses", "enum", "typing", "triptych.errors", "triptych.journey"}


def test_the_machines_import_no_clock_thread_memory_or_socket() -> None:
    found = set()
    for file in Path(protocol.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module))
    assert {name for name in found if not name.startswith("triptych.transfer.protocol")} == ALLOWED

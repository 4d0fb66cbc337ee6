import dataclasses
import os
import subprocess
import sys

import pytest

from triptych.errors import TransferFailed
from triptych.multimodal.digest import source_digest
from triptych.multimodal.memfd import MediaMemory, MemfdDescriptor, host_id, read_memfd

DATA = bytes(range(256)) * 5000

READER = """
import sys
from triptych.multimodal.digest import source_digest
from triptych.multimodal.memfd import MemfdDescriptor, read_memfd
host, pid, fd, size = sys.argv[1:]
print(source_digest(read_memfd(MemfdDescriptor(host, int(pid), int(fd)), int(size))).hex())
"""


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_another_process_reads_the_same_bytes() -> None:
    with MediaMemory(DATA) as memory:
        at = memory.descriptor
        arguments = [at.host_id, str(at.pid), str(at.fd), str(len(DATA))]
        done = subprocess.run([sys.executable, "-c", READER, *arguments], capture_output=True, text=True, check=True)
    from_here = done.stdout.strip()
    assert from_here == source_digest(DATA).hex()


def test_reading_leaves_no_descriptor_behind() -> None:
    with MediaMemory(DATA) as memory:
        before = _open_fds()
        assert read_memfd(memory.descriptor, len(DATA)) == DATA
        with pytest.raises(TransferFailed):
            read_memfd(memory.descriptor, 3)
        assert _open_fds() == before


def test_closing_frees_the_descriptor_once() -> None:
    before = _open_fds()
    memory = MediaMemory(DATA)
    memory.close()
    memory.close()
    assert _open_fds() == before
    with pytest.raises(TransferFailed, match="closed"):
        _ = memory.descriptor


def test_a_forgotten_memory_is_freed_with_its_object() -> None:
    before = _open_fds()
    MediaMemory(DATA)
    assert _open_fds() == before


def test_nobody_can_change_the_bytes() -> None:
    with MediaMemory(DATA) as memory:
        for call in (lambda fd: os.pwrite(fd, b"x", 0), lambda fd: os.ftruncate(fd, 1)):
            with pytest.raises(PermissionError):
                call(memory.descriptor.fd)


def test_no_bytes_are_bytes_too() -> None:
    with MediaMemory(b"") as memory:
        assert read_memfd(memory.descriptor, 0) == b""


def test_another_size_than_announced_is_refused() -> None:
    with MediaMemory(DATA) as memory, pytest.raises(TransferFailed, match=rf"{len(DATA)} bytes, expected 7"):
        read_memfd(memory.descriptor, 7)


def test_another_host_is_refused_by_name() -> None:
    with MediaMemory(DATA) as memory:
        elsewhere = dataclasses.replace(memory.descriptor, host_id="elsewhere-1")
        with pytest.raises(TransferFailed, match="elsewhere-1"):
            read_memfd(elsewhere, len(DATA))


def test_a_closed_or_unknown_descriptor_is_refused() -> None:
    memory = MediaMemory(DATA)
    gone = memory.descriptor
    memory.close()
    for at in (gone, MemfdDescriptor(host_id(), 2**22 + 1, 0)):
        with pytest.raises(TransferFailed):
            read_memfd(at, len(DATA))


def test_descriptors_of_anything_else_are_never_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("memfd") / "secret"
    file.write_bytes(b"secret")
    reader, writer = os.pipe()
    plain = os.open(file, os.O_RDONLY)
    other_memory = os.memfd_create("something-else")
    try:
        for fd in (reader, plain, other_memory):
            with pytest.raises(TransferFailed, match="expected media memory"):
                read_memfd(MemfdDescriptor(host_id(), os.getpid(), fd), 6)
    finally:
        for fd in (reader, writer, plain, other_memory):
            os.close(fd)


def test_the_host_id_is_the_same_in_every_process_of_the_host() -> None:
    code = "from triptych.multimodal.memfd import host_id; print(host_id())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == host_id()

"""A decoding process that does to itself what a stranger's file might: what stands behind the file says what."""

import os
import signal
import time

from triptych.multimodal.canonical import UInt8Array, write_planes
from triptych.multimodal.header import MediaHeader
from triptych.services.encoder.decode_child import main

MARK = b"\nfault "


def decode(data: bytes, header: MediaHeader, planes: UInt8Array) -> None:
    fault = data.rpartition(MARK)[2] if MARK in data else b""
    if fault == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == b"spin":
        while True:
            pass
    elif fault == b"sleep":
        time.sleep(3600)
    elif fault == b"memory":
        held = [bytes(1 << 24) for _ in range(1 << 10)]
        assert not held
    elif fault == b"bug":
        raise KeyError("no such thing")
    elif fault.startswith(b"once "):  # in the first process that comes by
        flag = fault[5:].decode()
        if os.path.exists(flag):
            os.unlink(flag)
            os.kill(os.getpid(), signal.SIGKILL)
    write_planes(data, header, planes)


if __name__ == "__main__":
    main(decode)

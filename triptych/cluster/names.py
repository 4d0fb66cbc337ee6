"""Workers' ids: the group, the place in it and, behind a reload, the number of the set: decode-1, decode-1.2."""

FIRST_SET = 1


def worker_name(group: str, index: int, number: int = FIRST_SET) -> str:
    """number: of the set of workers that it is one of"""
    return f"{group}-{index}" if number == FIRST_SET else f"{group}-{index}.{number}"


def group_in(worker_id: str) -> str:
    return worker_id.rpartition("-")[0]


def index_in(worker_id: str) -> int:
    return int(worker_id.rpartition("-")[2].partition(".")[0])


def set_in(worker_id: str) -> int:
    return int(worker_id.rpartition("-")[2].partition(".")[2] or FIRST_SET)

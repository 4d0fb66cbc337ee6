"""All checks of a node, in the order in which they are told. Each is run in a process of its own, loaded by name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a node."""

    name: str
    function: str  # "module:function", of a `Look`
    limit_seconds: float = 20.0  # then its process is ended


CHECKS = (
    Check("python", "triptych.doctor.versions:look_python"),
    Check("libraries", "triptych.doctor.versions:look_libraries"),
    Check("gpu", "triptych.doctor.gpu:look_gpu", 90.0),  # loads torch, and makes a context
    Check("cuda_ipc", "triptych.doctor.gpu_sharing:look_cuda_ipc", 120.0),
    Check("expandable_segments", "triptych.doctor.gpu_sharing:look_segments", 60.0),
    Check("nixl", "triptych.doctor.nixl:look_nixl", 90.0),
    Check("shared_memory", "triptych.doctor.memory:look_shared_memory"),
    Check("memfd", "triptych.doctor.memory:look_memfd", 30.0),
    Check("memory", "triptych.doctor.memory:look_memory"),
    Check("open_files", "triptych.doctor.limits:look_open_files"),
    Check("processes", "triptych.doctor.limits:look_processes"),
    Check("locked_memory", "triptych.doctor.limits:look_locked_memory"),
    Check("ports", "triptych.doctor.network:look_ports"),
    Check("interfaces", "triptych.doctor.network:look_interfaces"),
    Check("access", "triptych.doctor.network:look_access"),
    Check("clock", "triptych.doctor.clock:look_clock"),
    Check("ray_folder", "triptych.doctor.ray_node:look_folder"),
    Check("ray_token", "triptych.doctor.ray_node:look_token"),
)

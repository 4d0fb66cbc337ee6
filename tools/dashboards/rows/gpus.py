"""GPUs, as NVIDIA's dcgm-exporter tells of them; it runs on each node, apart from us."""

from tools.dashboards.panel import Limits, Panel, Query, Row, Unit

# Of dcgm-exporter's own names; those of PROF need a GPU that may be profiled, and NVLink's may have to be put on the
# exporter's list of fields. What is called bytes there is bytes a second already: a rate of it would be its slope's.
_GPU = "{{Hostname}} {{gpu}}"


def _dcgm(name: str) -> str:
    return f'max by (Hostname, gpu) (DCGM_FI_{name}{{cluster=~"$cluster"}})'


def _panel(title: str, read: str, act: str, unit: Unit, *names: tuple[str, str], limits: Limits | None = None) -> Panel:
    queries = tuple(Query(expr, f"{_GPU} {what}".strip()) for expr, what in names)
    return Panel(title, read, act, unit, queries, limits=limits)


GPUS = Row(
    "GPUs",
    (
        _panel(
            "Busy",
            "Share of time in which something ran on the GPU, and in which its tensor cores did.",
            "Busy without tensor cores: small batches, waiting for memory, or host work between kernels.",
            "percentunit",
            (f"{_dcgm('DEV_GPU_UTIL')} / 100", "anything"),
            (_dcgm("PROF_GR_ENGINE_ACTIVE"), "engine"),
            (_dcgm("PROF_PIPE_TENSOR_ACTIVE"), "tensor cores"),
        ),
        _panel(
            "Memory's bandwidth",
            "Share of cycles in which memory was read or written. Decode lives on it.",
            "Near 1 at decode workers: that is all the GPU gives; larger batches cost little more.",
            "percentunit",
            (_dcgm("PROF_DRAM_ACTIVE"), ""),
            limits=Limits(0.8, 0.95),
        ),
        _panel(
            "Memory",
            "Share of the GPU's memory in use. Workers take theirs at start, so it is flat.",
            "Growing: something beside us on that GPU, or a leak; see `device_bytes` of its workers.",
            "percentunit",
            (f"{_dcgm('DEV_FB_USED')} / ({_dcgm('DEV_FB_USED')} + {_dcgm('DEV_FB_FREE')})", ""),
            limits=Limits(0.95, 0.98),
        ),
        _panel(
            "Power",
            "Watts.",
            "A GPU far below its neighbours does less: look at placement. At its limit, clocks fall.",
            "watt",
            (_dcgm("DEV_POWER_USAGE"), ""),
        ),
        _panel(
            "Temperature",
            "Degrees of the chip.",
            "Above 85 clocks fall: cooling.",
            "celsius",
            (_dcgm("DEV_GPU_TEMP"), ""),
            limits=Limits(80, 87),
        ),
        _panel(
            "PCIe and NVLink",
            "Bytes a second. Between tiers on one host rows and KV go here.",
            "PCIe at its limit while NVLink rests: CUDA IPC has fallen back; `triptych status`.",
            "Bps",
            (_dcgm("PROF_PCIE_RX_BYTES"), "PCIe in"),
            (_dcgm("PROF_PCIE_TX_BYTES"), "PCIe out"),
            (_dcgm("PROF_NVLINK_RX_BYTES"), "NVLink in"),
            (_dcgm("PROF_NVLINK_TX_BYTES"), "NVLink out"),
        ),
        _panel(
            "Xid errors",
            "The code of the last error that the driver reported; 0 is none.",
            "NVIDIA's list of Xid codes says whether GPU, cable or program is at fault. 79 and 95: drain the node.",
            "short",
            (_dcgm("DEV_XID_ERRORS"), ""),
            limits=Limits(1, 31),
        ),
    ),
)

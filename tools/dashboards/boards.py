"""Which rows make which dashboard."""

from tools.dashboards.panel import Board, Row, Variable
from tools.dashboards.rows.encoder import ARENA, ENCODER, ROWS_TRANSFER
from tools.dashboards.rows.faults import FAULTS
from tools.dashboards.rows.gpus import GPUS
from tools.dashboards.rows.language import DECODE, KV_TRANSFER, PREFILL, PREFIXES
from tools.dashboards.rows.latency import LATENCY, TRAFFIC
from tools.dashboards.rows.slo import SLO
from tools.dashboards.rows.stages import MEDIA, ROUTER, WHOLE
from tools.dashboards.rows.transport import TRANSPORT
from tools.dashboards.rows.workers import WORKER

_CLUSTER = Variable("cluster", "Cluster", "label_values(triptych:workers, cluster)")
_CLASS = Variable("slo", "Class", 'label_values(triptych:slo_target_ratio{cluster=~"$cluster"}, slo)')
_TIER = Variable("worker_type", "Tier", 'label_values(triptych:rss_bytes{cluster=~"$cluster"}, worker_type)')
_WORKER = Variable(
    "worker",
    "Worker",
    'label_values(triptych:rss_bytes{cluster=~"$cluster",worker_type=~"$worker_type"}, worker_id)',
)


def _board(name: str, title: str, description: str, *rows: Row, variables: tuple[Variable, ...]) -> Board:
    return Board(f"triptych-{name}", f"Triptych / {title}", description, rows, (_CLUSTER, *variables))


BOARDS = (
    _board(
        *("slo", "Service levels", "Are clients served as promised? Attainment, error budget, latency, traffic."),
        *(SLO, LATENCY, TRAFFIC),
        variables=(_CLASS, _TIER),
    ),
    _board(
        *("stages", "Stages", "Where a request's time goes: one row for each stage, in the order of a request."),
        *(WHOLE, ROUTER, MEDIA, ENCODER, ROWS_TRANSFER, PREFILL, KV_TRANSFER, DECODE),
        variables=(_TIER, _WORKER),
    ),
    _board(
        *("cluster", "Cluster", "What the cluster is made of: faults, caches, transport between tiers, GPUs."),
        *(FAULTS, ARENA, PREFIXES, TRANSPORT, GPUS),
        variables=(_TIER, _WORKER),
    ),
    _board("workers", "Workers", "Each worker in a row of its own.", WORKER, variables=(_TIER, _WORKER)),
)

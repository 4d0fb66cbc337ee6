"""Who reads from whom by which way."""

from tools.dashboards.panel import Kind, Limits, Panel, Query, Row
from tools.dashboards.promql import buckets, quantile, rate, series, total

_PAIR = ("owner_role", "consumer_role", "transport")
_LEGEND = "{{owner_role}} to {{consumer_role}} by {{transport}}"

TRANSPORT = Row(
    "Transport, by pair of tiers",
    (
        Panel(
            "Paths",
            "Neighbours that each worker reads from, by the way to them. `none`: it cannot read from them at all.",
            "`nixl` within one host, or `none`: `triptych status` has the reason; `triptych doctor` looks for it.",
            "short",
            (Query(f"sum by (worker_id, {', '.join(_PAIR)}) ({series('transfer_pair_info')})", "neighbours"),),
            Kind.TABLE,
        ),
        Panel(
            "Copies",
            "A second, by pair and way.",
            "A pair that stops while requests come in: its path has failed, and others are slower.",
            "ops",
            (Query(rate("transfer_seconds", *_PAIR, suffix="_count"), _LEGEND),),
        ),
        Panel(
            "Seconds of a copy",
            "p99 by pair and way, checks included.",
            "Compare with the bytes of a copy: slow and small is latency, slow and large is bandwidth.",
            "s",
            (Query(quantile(0.99, "transfer_seconds", *_PAIR), _LEGEND),),
            limits=Limits(0.5, 5),
        ),
        Panel(
            "Seconds of copies, all of them",
            "How many copies a second took how long; darker is more.",
            "Two bands within one way: two networks, or an owner that is busy.",
            "s",
            buckets("transfer_seconds"),
            Kind.HEATMAP,
        ),
        Panel(
            "Bytes",
            "A second, by pair and way.",
            "What a network between tiers has to carry.",
            "Bps",
            (Query(rate("transfer_bytes", *_PAIR, suffix="_sum"), _LEGEND),),
        ),
        Panel(
            "Bytes of a copy",
            "Median and p99 by pair and way.",
            "Below 64 KiB over a network, packing pays: `transfer.nixl_pack_below_bytes`.",
            "bytes",
            (
                Query(quantile(0.5, "transfer_bytes", *_PAIR), f"{_LEGEND} p50"),
                Query(quantile(0.99, "transfer_bytes", *_PAIR), f"{_LEGEND} p99"),
            ),
        ),
        Panel(
            "Claims",
            "On exported memory, by owner.",
            "Follows the requests in flight, and is 0 without any; if not, an alert tells of a leak.",
            "short",
            (Query(total("claims", "worker_id"), "{{worker_id}}"),),
        ),
        Panel(
            "Claims that ended oddly",
            "A minute: ended by their deadline, or released when they were gone already.",
            "A few when a worker or router dies. Always some: `transfer.lease_seconds` is shorter than copies take.",
            "short",
            (
                Query(f"60 * {rate('expired_claims_total', 'worker_id')}", "{{worker_id}} expired"),
                Query(f"60 * {rate('late_releases_total', 'worker_id')}", "{{worker_id}} late"),
            ),
        ),
        Panel(
            "Claims granted and released",
            "A second. The two go together.",
            "Granted alone, for minutes: consumers do not release.",
            "ops",
            (Query(rate("claims_granted_total"), "granted"), Query(rate("claims_released_total"), "released")),
        ),
        Panel(
            "Copies that failed",
            "A minute, by reader, and copies given up that have not ended, each of which keeps memory until it does.",
            "Failures: the owner died, or the path did. Copies that stay lost: an alert; restart that worker.",
            "short",
            (
                Query(f"60 * {rate('transfer_failures_total', 'worker_id')}", "{{worker_id}} failed a minute"),
                Query(total("transfer_lost_copies", "worker_id"), "{{worker_id}} lost now"),
            ),
            limits=Limits(1, 10),
        ),
    ),
)

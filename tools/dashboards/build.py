"""A board as Grafana's JSON, by grafana-foundation-sdk's builders."""

import json
from itertools import count

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tools.dashboards.panel import QUERY_LETTERS, Board, Kind, Limits, Panel, Query, Variable

_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT, _NUMBER_HEIGHT = 8, 5
_GREEN, _ORANGE, _RED = "green", "orange", "red"
_Drawn = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel


def dashboard_json(board: Board) -> str:
    """As Grafana reads it from a file."""
    return json.dumps(_dashboard(board).build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _dashboard(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["triptych"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_siblings())
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made.with_variable(_variable(variable))
    numbers = count(1)
    for row in board.rows:
        heading = dashboard.Row(row.title).id(next(numbers))
        made.with_row(heading.repeat(row.repeat) if row.repeat else heading)
        for panel in row.panels:
            made.with_panel(_panel(panel, next(numbers)))
    return made


def _siblings() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Triptych").type(models.DashboardLinkType.DASHBOARDS)
    return link.tags(["triptych"]).include_vars(True).keep_time(True)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    chosen = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(chosen)
    )


def _panel(panel: Panel, number: int) -> Builder[models.Panel]:
    drawn = _DRAWN[panel.kind](panel)
    drawn.id(number).title(panel.title).description(f"{panel.read}\n\n**What to do:** {panel.act}")
    drawn.datasource(_SOURCE).unit(panel.unit).span(panel.width)
    drawn.height(_NUMBER_HEIGHT if panel.kind is Kind.NUMBER else _HEIGHT)
    for letter, query in zip(QUERY_LETTERS[: len(panel.queries)], panel.queries, strict=True):
        drawn.with_target(_target(query, panel.kind, letter))
    if panel.limits is not None:
        drawn.thresholds(_thresholds(panel.limits))
    return drawn


def _target(query: Query, kind: Kind, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend).datasource(_SOURCE)
    if kind is Kind.HEATMAP:
        return target.range().format(PromQueryFormat.HEATMAP)
    if kind is Kind.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range().format(PromQueryFormat.TIME_SERIES)


def _thresholds(limits: Limits) -> dashboard.ThresholdsConfig:
    """Grafana counts from below: a step's colour is that of all values from it on."""
    if limits.bad < limits.warn:
        steps = [(None, _RED), (limits.bad, _ORANGE), (limits.warn, _GREEN)]
    else:
        steps = [(None, _GREEN), (limits.warn, _ORANGE), (limits.bad, _RED)]
    made = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _lines(panel: Panel) -> _Drawn:
    legend = options.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE)
    legend.placement(common.LegendPlacement.BOTTOM).show_legend(True).calcs(["lastNotNull", "max"])
    drawn = timeseries.Panel().legend(legend).fill_opacity(10).line_width(1).show_points(common.VisibilityMode.NEVER)
    drawn.tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)).axis_soft_min(0)
    if panel.limits is not None:
        drawn.thresholds_style(options.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED))
    return drawn


def _areas(panel: Panel) -> _Drawn:
    drawn = _lines(panel)
    assert isinstance(drawn, timeseries.Panel)
    return drawn.fill_opacity(60).stacking(options.StackingConfig().mode(common.StackingMode.NORMAL))


def _number(panel: Panel) -> _Drawn:
    latest = options.ReduceDataOptions().calcs(["lastNotNull"])
    drawn = stat.Panel().reduce_options(latest).graph_mode(common.BigValueGraphMode.AREA)
    return drawn.color_mode(common.BigValueColorMode.VALUE).no_value("none yet")


def _heatmap(panel: Panel) -> _Drawn:
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    axis = heatmap.YAxisConfig().unit(panel.unit)
    drawn = heatmap.Panel().calculate(False).color(color).y_axis(axis).cell_gap(1).show_legend()
    return drawn.scale_distribution(options.ScaleDistributionConfig().type(common.ScaleDistribution.LINEAR))


def _table(panel: Panel) -> _Drawn:
    hidden = models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True, "__name__": True, "job": True, "instance": True}}
    )
    drawn = table.Panel().show_header(True).align(common.FieldTextAlignment.AUTO)
    return drawn.with_transformation(hidden)


_DRAWN = {
    Kind.LINES: _lines,
    Kind.AREAS: _areas,
    Kind.NUMBER: _number,
    Kind.HEATMAP: _heatmap,
    Kind.TABLE: _table,
}

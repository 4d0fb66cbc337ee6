"""Grafana's dashboards as Python: rows of panels (`rows/`), the boards they make (`boards.py`), and JSON of them.

`python -m tools.dashboards` writes deploy/grafana/dashboards. Definitions need nothing but the list of metrics; only
`build.py` needs grafana-foundation-sdk.
"""

"""Grafana's boards before a real Prometheus and a live cluster."""

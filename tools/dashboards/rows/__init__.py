"""Rows of panels, a file for each part of the cluster, in the order of a request's way."""

"""The page at `/`: static files, and the feed that they draw the cluster from."""

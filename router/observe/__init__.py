"""Where a request's time went and how well requests are served, as it is told and counted."""

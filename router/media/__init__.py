"""From what a request says of its images to bytes that encoders are sent."""

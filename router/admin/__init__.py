"""What operators and those who watch a server ask it."""

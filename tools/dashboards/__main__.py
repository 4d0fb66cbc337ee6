"""Writes deploy/grafana/dashboards anew."""

from pathlib import Path

from tools.dashboards.boards import BOARDS
from tools.dashboards.build import dashboard_json

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"


def main() -> None:
    """One file for each board; others in the folder are removed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(dashboard_json(board))


if __name__ == "__main__":
    main()

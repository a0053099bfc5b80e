"""The last stage: the report of a run."""

from pathlib import Path

from prefect import task

from report.write import write_run_report
from tasks.measure import RETRIES
from tasks.session import current


@task(name="report", **RETRIES)
async def write_report() -> str:
    """Write the HTML report from catalog and store. Returns its path."""
    session = current()
    # The page tells how the run ended, and nothing that it measures is still to come.
    session.status("completed")
    path: Path = write_run_report(session.root, session.run_id)
    return str(path)

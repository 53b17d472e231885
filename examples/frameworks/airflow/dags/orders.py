"""A DAG whose tasks run in Celery workers: it runs once, and retries a task that fails."""

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import dag, get_current_context, task


@dag(schedule="@once", start_date=datetime(2026, 1, 1), catchup=False, tags=["leveret"])
def orders() -> None:
    @task(retries=2, retry_delay=timedelta(seconds=1))
    def fetch() -> list[int]:
        if get_current_context()["ti"].try_number == 1:
            raise ConnectionError("the shop does not answer")
        return [3, 4]

    @task(queue="reports")
    def total(prices: list[int]) -> int:
        return sum(prices)

    @task(queue="reports")
    def report(amount: int) -> None:
        Path(os.environ["REPORT"]).write_text(f"total {amount}\n")

    report(total(fetch()))


orders()

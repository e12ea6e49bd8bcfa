"""The paper's tables as data: cells, jobs, numbers, statistics and verdicts. Renders nothing."""

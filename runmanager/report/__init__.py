"""One HTML file that shows what came of a grid: which run is best, and why."""

from runmanager.report.render import write_report as write_report

"""One HTML file that shows which run of a grid is best, and why."""

from runmanager.report.render import write_report as write_report

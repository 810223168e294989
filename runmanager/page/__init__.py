"""One HTML file that shows what came of a grid: which run is best, and why."""

from runmanager.page.writing import write_report as write_report

"""A run folder as one page to look at: `report.html`, self-contained, opened from the disk, asking nobody for anything."""

from snugnet.reporting.page import build_report

__all__ = ["build_report"]

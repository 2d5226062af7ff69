"""A solution, or a sweep of them over the richness, as one HTML page that needs nothing else: `page` makes it."""

from adakern.report.pages import page
from adakern.report.panels import Test

__all__ = ["Test", "page"]

"""Measurements of commitfs beside what it stands on, in ratios taken within one run.

Not part of the package and not of the test suite: nothing here passes or fails by time.
"""

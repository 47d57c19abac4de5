"""Runs on the host itself: no isolation, a clean environment, limits kept by a supervisor."""

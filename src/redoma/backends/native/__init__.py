"""Runs on the host itself: no isolation, a clean environment, limits enforced by a supervisor."""

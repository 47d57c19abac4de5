"""Leaves: helpers that know nothing of requests, policies or backends."""

"""The backends, each behind `base.Backend`."""

"""One file for each way of running things, behind `base.Backend`."""

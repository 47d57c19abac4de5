"""What a run prints and leaves: capture, live streaming, artifacts, expectations, diagnoses."""

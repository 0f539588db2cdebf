"""Models, tasks, workers and clients that several test modules share."""

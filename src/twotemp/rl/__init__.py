"""GRPO post-training with diverse rollouts: a client of the engine, with the task graders as rewards."""

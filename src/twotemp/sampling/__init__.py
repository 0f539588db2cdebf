"""From prompts to requests (`prompts`), from token ids to text (`text`), and the library's functions (`api`)."""

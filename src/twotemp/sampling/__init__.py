"""From prompts to requests, and from token ids to text (`requests`); and the library's functions (`api`)."""

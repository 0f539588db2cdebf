"""From prompts to requests and from token ids to text (`text`), and the library's functions (`api`)."""

"""Who asked for what, and what became of it? The aiohttp server between people and engines."""

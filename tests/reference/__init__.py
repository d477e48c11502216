"""What a replica must hold, by a plain in-memory model, and waits that end at a deadline."""

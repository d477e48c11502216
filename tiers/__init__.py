"""Tiers: where items are held, and within which budget."""

"""What an event is: its kinds and payloads, digests, and the one codec for wire, log and snapshot.

This room does not know who sends or stores an event.
"""

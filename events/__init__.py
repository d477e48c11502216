"""What an event is: kinds and payloads, digests, and the one codec for wire, log and snapshot."""

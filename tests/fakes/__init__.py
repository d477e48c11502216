"""Small stand-ins that follow the protocol, for tests of one side of it."""

"""Log records for tests, and a disk that fails when it is told to."""

"""A client without the library's client: raw frames to a broker, good ones and bad ones."""

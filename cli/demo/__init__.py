"""`paramstream demo`: a broker, a trainer on real data and two replicas, each in a process of its own.

The parent (`command.py`, `play.py`) starts them, kills one replica midway, and compares what they hold at the end. A child reports on
its standard output and takes orders on its standard input, one JSON object a line (`messages.py`); when its input ends, the
parent is gone, and so is the child.
"""

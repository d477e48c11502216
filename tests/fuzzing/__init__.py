"""Every decoder of what comes from outside, fed with what nobody wrote: see `target.py` for what is held of each.

`cd tests && python -m fuzzing wire --minutes 10`, or `make fuzz TARGET=wire`, searches; `fuzzing/test_decoders.py` is the short form of
it in every test run, with all that was ever found, which lies in `corpus/`.
"""

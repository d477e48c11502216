"""A broker, a publisher and a replica under a steady load, measured from outside: does anything grow that should not?"""

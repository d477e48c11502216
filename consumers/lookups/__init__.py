"""Look-ups at replicas by other processes and hosts.

    serving.py, answers.py, source.py, waking.py       a replica answers: its thread, what is answered, from what, and when it looks again
    lookups.py, questions.py, routes.py, reads.py      a client asks: what it calls, how keys become questions, whom it asks, one round of them
    hot.py                                             copies of rows that a client looks up often, kept fresh by following

Whatever travels between them is `transport/lookups.py`.
"""

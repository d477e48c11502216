"""What a spawned child runs, and how a test holds it: a broker, a publisher and a replica in processes of their own."""

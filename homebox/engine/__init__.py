"""When does a token get computed? Requests, blocks, fairness, the scheduler and the loop that runs its plans."""

"""A run at any scale in virtual time: the real loop, buffer and pool, with simulated engines and learner."""

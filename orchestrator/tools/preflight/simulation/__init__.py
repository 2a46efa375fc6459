"""A run at any scale in virtual time: the product's loop, buffer and pool, with engines and a learner that only take time."""

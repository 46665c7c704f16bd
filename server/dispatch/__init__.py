"""The way to the scheduler: a bounded number of places, one socket, and a mailbox for each request."""

"""A long run at 80 % of what the machine carries, with every feature on: what processes and the server use stays flat."""

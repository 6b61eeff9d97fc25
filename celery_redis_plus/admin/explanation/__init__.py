"""Why a message waits, why it was delivered more than once, and when its turn comes."""

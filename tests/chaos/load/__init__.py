"""The load of a storm beside its plain tasks: queues with every feature, their publisher, and subscribers of broadcasts."""

"""What operators, the command line and the web page do with a broker: look, examine, move, replay, pause. It prints nothing."""

"""One promise a file: a function that takes a history and the rules of its run, and yields what breaks the promise."""

"""Extensions of the program, each a file that registers itself, and what the program makes of them."""

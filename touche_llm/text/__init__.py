"""Text from outside: chat-control tokens removed, passages, words."""

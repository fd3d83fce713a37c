"""Text from outside: removal of chat-control tokens, and index terms."""

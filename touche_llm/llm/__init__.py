"""The language model: requests, engines, answers, the answer cache."""

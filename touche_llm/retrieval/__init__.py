"""First stages: the best documents of each topic without a language model."""

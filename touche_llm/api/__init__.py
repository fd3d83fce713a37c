"""What a program calls: a model, a corpus, retrieve, judge, rank, evaluate."""

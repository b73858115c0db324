"""Word counts of a corpus, and WordPiece vocabularies learnt from them."""

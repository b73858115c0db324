"""From text to a vocabulary, before training: word counts, and WordPiece from them."""

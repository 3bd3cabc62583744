"""Draft heads that come with the program; a card beside each says what it was made of."""

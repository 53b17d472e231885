"""What the engines of all protocols share."""

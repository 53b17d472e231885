"""Parts shared by the engines of all protocols."""

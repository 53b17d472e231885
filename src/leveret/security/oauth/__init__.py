"""OAuth 2: JSON Web Tokens as credentials, their scopes, and the keys that verify them."""

"""The management node: requests over a link pair, and the operations that use them."""

"""One worker process: a runner that performs runs, and a keeper that writes about them."""

"""Reports for pages and commands, and the changes that operators may make."""

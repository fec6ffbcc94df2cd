"""The helpers of `flask_cronjobs.testing`, in every set-up of a test's database."""

"""Tests of pings and of the webhook."""

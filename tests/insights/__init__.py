"""Tests of what people read and change: lists, checks, the doctor, actions."""

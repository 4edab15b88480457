"""Schedules for GPUs: made from a kernel and a target by rules and a cost model."""

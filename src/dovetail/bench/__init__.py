"""What ``dovetail bench`` measures, and the process that measures one case."""

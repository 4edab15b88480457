"""From kernel IR to code for a target: one folder a target."""

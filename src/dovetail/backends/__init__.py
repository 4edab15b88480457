"""Built-in backends. The registry names them and loads each on first use."""

"""Starting without Dynamo's trace: compiled graphs inside what PyTorch's precompile keeps."""

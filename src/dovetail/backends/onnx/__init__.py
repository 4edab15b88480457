"""``onnxruntime``: segments as ONNX models."""

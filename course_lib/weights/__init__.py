"""Loading models: `load_model(name)` and `load_tokenizer(name)`."""

from course_lib.weights.loading import default_model, load_model, load_tokenizer, locate

__all__ = ["default_model", "load_model", "load_tokenizer", "locate"]

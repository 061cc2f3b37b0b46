"""Many processes as one trainer: how they meet, how the model is spread over them, and what they sum up."""

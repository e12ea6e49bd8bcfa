"""Ways to turn the gradients of all ranks into one: each a file, chosen by conf/reducer/."""
